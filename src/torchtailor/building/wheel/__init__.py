"""The wheel backend: official wheels, cut for one GPU."""
