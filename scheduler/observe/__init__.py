"""What others see of a process: its logs, its traces, its metrics, and whether it is well."""
