"""What a machine is: detected, or read from a description made on another machine."""
