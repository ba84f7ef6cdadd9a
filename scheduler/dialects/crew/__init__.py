"""Workers at a queue: what they say of themselves, in every dialect."""
