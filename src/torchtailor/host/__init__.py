"""What a machine is: found out here, or told by a file from elsewhere."""
