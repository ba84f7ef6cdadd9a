"""Queues shared with BullMQ's own workers and producers: its keys, fields, scores, marker and
events; our scripts.
"""
