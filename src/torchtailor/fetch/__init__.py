"""Getting wheels: indexes, resolution, downloads, the content-addressed cache."""
