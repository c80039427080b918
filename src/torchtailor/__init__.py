"""Makes PyTorch fit one machine."""

__version__ = "0.1.0"
