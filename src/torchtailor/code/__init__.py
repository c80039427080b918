"""What is inside binaries: ELF files, GPU code, host code."""
