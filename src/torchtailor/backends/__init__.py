"""How a variant is made: from official wheels, from source, with Nix."""
