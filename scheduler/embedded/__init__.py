"""Real servers out of wheels, for `scheduler up`, for trying things out, and for tests."""
