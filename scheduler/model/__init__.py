"""Pure values and decisions: no I/O, no clock of its own, only the standard library and errors."""
