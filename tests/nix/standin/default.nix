# The stand-in for nixpkgs as a flake's input: the pin of the recipes in .flox, which is the newest one.
args:
let
  pins = (builtins.fromTOML (builtins.readFile ../../../src/torchtailor/catalog/data/nix.toml)).nixpkgs;
in
import ../../../src/torchtailor/nix/standin/nixpkgs.nix (
  {
    pin = { cudnn_refuses = { }; } // builtins.elemAt pins (builtins.length pins - 1) // {
      url = "input";
      sha256 = null;
    };
  }
  // args
)
