"""Package indexes as files: simple pages, JSON, wheel variants."""
