"""Where the bytes of an artifact are, how two of them differ, and budgets that fail a build."""
