"""Why torch does not run on a machine, and what fixes it."""
