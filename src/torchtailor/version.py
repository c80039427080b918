"""The version of torchtailor."""

__version__ = "0.1.0"
