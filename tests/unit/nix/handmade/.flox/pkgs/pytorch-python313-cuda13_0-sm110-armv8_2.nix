# PyTorch optimized for NVIDIA DRIVE Thor (SM110) + ARMv8.2
# Package name: pytorch-python313-cuda13_0-sm110-armv8_2

{ pkgs ? import <nixpkgs> {} }:

let
  # Import nixpkgs at a specific revision with CUDA 13.0 (required for SM110)
  nixpkgs_pinned = import (builtins.fetchTarball {
    url = "https://github.com/NixOS/nixpkgs/archive/fe5e41d7ffc0421f0913e8472ce6238ed0daf8e3.tar.gz";
    # You can add the sha256 here once known
  }) {
    config = {
      allowUnfree = true;
      cudaSupport = true;
    };
  };

  gpuArchNum = "110";
  gpuArchSM = "sm_110";

  cpuFlags = [
    "-march=armv8.2-a+fp16+dotprod"
  ];

in
  (nixpkgs_pinned.python3Packages.pytorch.override {
    cudaSupport = true;
    gpuTargets = [ gpuArchSM ];
  }).overrideAttrs (oldAttrs: {
    pname = "pytorch-python313-cuda13_0-sm110-armv8_2";

    preConfigure = (oldAttrs.preConfigure or "") + ''
      export CXXFLAGS="$CXXFLAGS ${nixpkgs_pinned.lib.concatStringsSep " " cpuFlags}"
      export CFLAGS="$CFLAGS ${nixpkgs_pinned.lib.concatStringsSep " " cpuFlags}"
      export MAX_JOBS=32
    '';

    meta = oldAttrs.meta // {
      description = "PyTorch for NVIDIA DRIVE Thor (SM110) + ARMv8.2";
      longDescription = ''
        - GPU: NVIDIA DRIVE Thor (SM110)
        - CPU: ARM Neoverse N1, AWS Graviton2
        - Driver: NVIDIA 550+ required
      '';
      platforms = [ "aarch64-linux" ];
    };
  })
