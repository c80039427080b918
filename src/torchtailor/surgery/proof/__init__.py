"""The proof of a cut library: stock and output are read from scratch and compared."""
