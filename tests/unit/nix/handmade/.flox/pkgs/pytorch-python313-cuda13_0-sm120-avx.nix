# PyTorch optimized for NVIDIA RTX 5090 (SM120) + AVX
# Package name: pytorch-python313-cuda13_0-sm120-avx

{ pkgs ? import <nixpkgs> {} }:

let
  # Import nixpkgs at a specific revision with CUDA 13.0 (required for SM120)
  nixpkgs_pinned = import (builtins.fetchTarball {
    url = "https://github.com/NixOS/nixpkgs/archive/fe5e41d7ffc0421f0913e8472ce6238ed0daf8e3.tar.gz";
    # You can add the sha256 here once known
  }) {
    config = {
      allowUnfree = true;
      cudaSupport = true;
    };
  };

  gpuArchNum = "120";
  gpuArchSM = "sm_120";

  cpuFlags = [
    "-mavx"
  ];

in
  (nixpkgs_pinned.python3Packages.pytorch.override {
    cudaSupport = true;
    gpuTargets = [ gpuArchSM ];
  }).overrideAttrs (oldAttrs: {
    pname = "pytorch-python313-cuda13_0-sm120-avx";

    preConfigure = (oldAttrs.preConfigure or "") + ''
      export CXXFLAGS="$CXXFLAGS ${nixpkgs_pinned.lib.concatStringsSep " " cpuFlags}"
      export CFLAGS="$CFLAGS ${nixpkgs_pinned.lib.concatStringsSep " " cpuFlags}"
      export MAX_JOBS=32
    '';

    meta = oldAttrs.meta // {
      description = "PyTorch for NVIDIA RTX 5090 (SM120) + AVX";
      longDescription = ''
        - GPU: NVIDIA RTX 5090 (SM120)
        - CPU: Intel Sandy Bridge+
        - Driver: NVIDIA 570+ required
      '';
      platforms = [ "x86_64-linux" ];
    };
  })
