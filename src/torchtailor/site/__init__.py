"""The site: pick your hardware, get the command; the matrix and its guides as pages that need no server."""
