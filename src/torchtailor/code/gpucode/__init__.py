"""GPU code inside binaries: ELF reading, fatbin containers, where they are, and what they amount to."""
