"""Queues shared with Conveyor's own workers and clients in Go: its bytes, keys, sets and events;
our scripts.
"""
