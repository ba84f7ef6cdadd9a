"""Real servers out of wheels, for `scheduler up`, for trying things out, and for tests.

Each server has a keeper: a process that runs it for as long as anybody uses it. However its users
end, Ctrl-C or `kill -9` included, the server ends with the last of them. As root the servers run as
a user without rights.
"""
