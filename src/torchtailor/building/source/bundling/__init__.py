"""Puts the libraries of the system that are not on every Linux into a wheel, so that it runs elsewhere."""
