"""The source way: compiles PyTorch for one CPU instruction set and one GPU."""
