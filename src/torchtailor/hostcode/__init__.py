"""Which CPU instructions a library needs, per function, and which of its functions always run."""
