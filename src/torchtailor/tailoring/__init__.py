"""Cutting wheels, folders, and environments in place with a journal; what was done is recorded in a manifest."""
