"""The command `scheduler`."""
