"""What GPU code an artifact holds, and what a GPU can do with it."""
