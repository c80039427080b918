"""Nix/Flox recipes: write, audit, migrate and hash trees of them."""
