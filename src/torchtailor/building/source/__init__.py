"""The source backend: compiles PyTorch for one CPU instruction set and one GPU."""
