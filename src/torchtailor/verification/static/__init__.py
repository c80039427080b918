"""Level 1: what can be proven of an artifact by reading it, without its hardware."""
