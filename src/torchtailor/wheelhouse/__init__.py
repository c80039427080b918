"""An installable set of wheels with its index and manifest, and its installation."""
