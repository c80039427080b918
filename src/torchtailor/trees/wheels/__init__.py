"""Wheels as files: names, the zip inside, RECORD, METADATA; read strictly, written deterministically."""
