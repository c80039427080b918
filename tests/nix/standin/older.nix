# The stand-in at the older pin.
args:
let
  pins = (builtins.fromTOML (builtins.readFile ../../../src/torchtailor/catalog/data/nix.toml)).nixpkgs;
in
import ../../../src/torchtailor/nix/standin/nixpkgs.nix (
  {
    pin = {
      cudnn_refuses = { };
    }
    // builtins.head pins
    // {
      url = "input";
      sha256 = null;
    };
  }
  // args
)
