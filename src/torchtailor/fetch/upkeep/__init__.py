"""Keeping the catalog up to date: what the indexes have that it does not know."""
