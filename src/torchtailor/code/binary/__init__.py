"""Bytes of files, and the ELF format: mapped, in a buffer, or inflated while they are read."""
