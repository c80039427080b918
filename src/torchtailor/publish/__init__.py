"""Putting wheels where others find them: static indexes, wheel variants, stores."""
