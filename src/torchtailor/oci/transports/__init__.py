"""Where images are stored: registries, OCI layouts, archives."""
