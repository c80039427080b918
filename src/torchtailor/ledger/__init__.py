"""Every attempt to build: what, when, how long, how it ended."""
