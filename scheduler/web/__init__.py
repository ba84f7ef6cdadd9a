"""HTTP: the API under /api/v1, for programs, and what people see; extra `web`."""
