"""Which machine this is, and which PyTorch fits it."""
