"""Queues that BullMQ's own workers and producers share: its keys, fields, scores, marker and events; scripts of ours."""
