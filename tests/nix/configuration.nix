# configuration.nix: PyTorch for an RTX 4090 and AVX2 in every Python environment of a NixOS machine.
{ pkgs, ... }:

let
  torchtailor = import /etc/nixos/torchtailor/.flox/torchtailor/overlay.nix { }; # a clone of this repository
in
{
  nixpkgs.config = {
    allowUnfree = true;
    cudaSupport = true;
  };
  nixpkgs.overlays = [
    (torchtailor {
      gpu = "8.9";
      cpu = "avx2";
    })
  ];
  environment.systemPackages = [
    (pkgs.python313.withPackages (ps: [
      ps.torch
      ps.torchvision
    ]))
  ];
}
