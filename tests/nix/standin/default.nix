# The stand-in for nixpkgs as a flake's input: the pin of the recipes in .flox.
args:
import ../../../src/torchtailor/recipes/standin/nixpkgs.nix (
  {
    pin = {
      url = "input";
      rev = "6a030d535719c5190187c4cec156f335e95e3211";
      sha256 = null;
      torch = "2.9.1";
      triton = "3.5.1";
      torchvision = "0.24.0";
      torchaudio = "2.9.0";
      cuda."12.8" = "12.8.1";
      cuda."13.0" = "13.0.2";
      aliases.cudaPackages = "12.8";
      pythons = [
        "3.12"
        "3.13"
        "3.14"
      ];
      broken_cuda = [ 13 ];
      cudnn_refuses = { };
    };
  }
  // args
)
