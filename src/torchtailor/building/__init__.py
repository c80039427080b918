"""The build methods: from official wheels, from source, with Nix."""
