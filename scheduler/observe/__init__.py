"""What others see of a process: its logs and its traces."""
