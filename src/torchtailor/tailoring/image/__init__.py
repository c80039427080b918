"""Cutting a container image: which libraries its layers hold, and new layers for them."""
