"""Ends on their way to a ledger, and the fence against jobs that are pushed after theirs was
settled.
"""
