"""Postgres: the only importer of psycopg and SQLAlchemy. One module a table; its statements are in
sql/.
"""
