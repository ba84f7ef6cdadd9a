"""Redis: the only importer of redis-py. One seam (`interface`), and a folder for each dialect
behind it.
"""
