# PyTorch 2.9.1 for SM90 (Hopper: H100, H200, GH200) and AVX-512, CUDA 12.9, Python 3.13.
{
  pkgs ? { stdenv.hostPlatform.system = builtins.currentSystem; },
  nixpkgsSource ? builtins.fetchTarball {
    url = "https://github.com/NixOS/nixpkgs/archive/6a030d535719c5190187c4cec156f335e95e3211.tar.gz";
    sha256 = "sha256-BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBA=";
  },
}:

let
  # GPU: SM90 (Hopper: H100, H200, GH200)
  gpuArchSM = "9.0";

  # CPU: AVX-512
  cpuFlags = [
    "-mavx512f"
    "-mavx512dq"
    "-mavx512vl"
    "-mavx512bw"
    "-mfma"
  ];

  nixpkgs_pinned = import nixpkgsSource {
    inherit (pkgs.stdenv.hostPlatform) system;
    config = {
      allowUnfree = true;
      cudaSupport = true;
      cudaCapabilities = [ gpuArchSM ]; # NCCL and MAGMA are compiled for these
      cudaForwardCompat = false;
    };
    overlays = [
      # Overlay 1: CUDA 12.9 for every package
      (final: prev: { cudaPackages = final.cudaPackages_12_9; })

      # Overlay 2: MAGMA for this GPU only
      (final: prev: {
        magma = prev.magma.override {
          cudaPackages = final.cudaPackages // {
            flags = final.cudaPackages.flags // {
              cudaCapabilities = [ gpuArchSM ];
              cmakeCudaArchitecturesString = "90-real";
            };
          };
        };
      })
    ];
  };
in
(nixpkgs_pinned.python313Packages.torch.override {
  cudaSupport = true;
  gpuTargets = [ gpuArchSM ];
}).overrideAttrs
  (oldAttrs: {
    pname = "pytorch-python313-cuda12_9-sm90-avx512";
    # buildPythonPackage has already set the name from the old pname
    name = "pytorch-python313-cuda12_9-sm90-avx512-${oldAttrs.version}";

    # The build runs setup.py, which passes environment variables on to CMake, but no flags of the derivation.
    preConfigure = (oldAttrs.preConfigure or "") + ''
      export CFLAGS="${builtins.concatStringsSep " " cpuFlags} ''${CFLAGS:-}"
      export CXXFLAGS="${builtins.concatStringsSep " " cpuFlags} ''${CXXFLAGS:-}"
    '';

    # nixpkgs sets MAX_JOBS from NIX_BUILD_CORES: limit it to one compiler per 4 GB of memory.
    preBuild = ''
      room=$(awk '/^MemAvailable:/ { print int($2 / 1024 / 1024 / 4) }' /proc/meminfo)
      if [ "''${room:-0}" -lt 1 ]; then room=1; fi
      if [ "$room" -lt "$NIX_BUILD_CORES" ]; then export NIX_BUILD_CORES=$room; fi
    ''
    + (oldAttrs.preBuild or "");

    passthru = (oldAttrs.passthru or { }) // {
      gpuArch = "sm90";
      cpuISA = "avx512";
      # What it belongs to, for what is built on it
      nixpkgs = nixpkgs_pinned;
    };

    meta = (oldAttrs.meta or { }) // {
      description = "PyTorch 2.9.1 for SM90 (Hopper: H100, H200, GH200) and AVX-512";
      longDescription = ''
        GPU: compute capability 9.0, Hopper: H100, H200, GH200, H800, H20
        CUDA: 12.9
        Driver: NVIDIA 575.57.08 or newer (525.60.13 with minor-version compatibility)
        CPU: x86_64 with AVX-512 (Intel Skylake-SP / Skylake-X 2017 (not Knights Landing: no bw/dq/vl; not 12th gen and later Core; not Sierra Forest); AMD Zen 4 2022)
        BLAS: cuBLAS on the GPU, OpenBLAS on the CPU
        Python: 3.13
      '';
      platforms = [ "x86_64-linux" ];
    };
  })
