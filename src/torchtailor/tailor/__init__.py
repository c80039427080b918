"""Cutting: what to keep, the surgery, the proof; libraries, wheels and environments."""
