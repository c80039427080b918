"""What everything stands on: files, locks, trust, progress, processes, errors."""
