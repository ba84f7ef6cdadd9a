"""The standard dialect: the waiting jobs of a queue are one sorted set, see decision 022."""
