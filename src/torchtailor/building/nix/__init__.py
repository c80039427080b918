"""The Nix backend: builds recipes with Flox or Nix."""
