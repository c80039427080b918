"""What users point at: libraries, wheels, folders, environments; their metadata and licences."""
