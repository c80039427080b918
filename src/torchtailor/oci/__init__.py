"""Container images: their names, where they are stored, and cutting them to GPUs without a daemon."""
