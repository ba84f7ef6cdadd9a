"""The reliable dialect: lists for the levels, a processing list for each worker, and scripts that
move between them.
"""
