# PyTorch 2.10.0 for SM90 (Hopper: H100, H200, GH200) and ARMv9, CUDA 13.0, Python 3.13.
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

  # CPU: ARMv9
  cpuFlags = [
    "-march=armv9-a+sve+sve2"
  ];

  lenient = builtins.replaceStrings [ "--replace-fail" "rm cmake/" ] [ "--replace-warn" "rm -f cmake/" ];

  nixpkgs_pinned = import nixpkgsSource {
    inherit (pkgs.stdenv.hostPlatform) system;
    config = {
      allowUnfree = true;
      allowBroken = true; # nixpkgs marks torch as broken with CUDA 13
      cudaSupport = true;
      cudaCapabilities = [ gpuArchSM ]; # NCCL and MAGMA are compiled for these
      cudaForwardCompat = false;
    };
    overlays = [
      # Overlay 1: CUDA 13.0 for every package
      (final: prev: { cudaPackages = final.cudaPackages_13_0; })

      # Overlay 2: MAGMA for this GPU only, patched for CUDA 13, which removed clockRate from cudaDeviceProp
      (final: prev: {
        magma =
          (prev.magma.override {
            cudaPackages = final.cudaPackages // {
              flags = final.cudaPackages.flags // {
                cudaCapabilities = [ gpuArchSM ];
                cmakeCudaArchitecturesString = "90-real";
              };
            };
          }).overrideAttrs
            (oldAttrs: {
              patches = (oldAttrs.patches or [ ]) ++ [
                (final.fetchpatch {
                  name = "cuda-13.0-clockrate-fix.patch";
                  url = "https://github.com/icl-utk-edu/magma/commit/235aefb7b064954fce09d035c69907ba8a87cbcd.patch";
                  hash = "sha256-i9InbxD5HtfonB/GyF9nQhFmok3jZ73RxGcIciGBGvU=";
                })
              ];
            });
      })

      # Overlay 3: PyTorch 2.10.0; nixpkgs has 2.9.1 at this pin
      (final: prev: {
        python313Packages = prev.python313Packages.override {
          overrides = pfinal: pprev: {
            torch = pprev.torch.overrideAttrs (oldAttrs: {
              version = "2.10.0";
              src = final.fetchFromGitHub {
                owner = "pytorch";
                repo = "pytorch";
                rev = "v2.10.0";
                fetchSubmodules = true;
                hash = "sha256-RKiZLHBCneMtZKRgTEuW1K7+Jpi+tx11BMXuS1jC1xQ=";
              };
              # Triton stays nixpkgs' 3.5.1; PyTorch 2.10.0 is developed with 3.6.0.
              # Apply nixpkgs' patches for 2.9.1 that still fit, and log the others.
              patches = [ ];
              prePatch = (oldAttrs.prePatch or "") + ''
                for nixpkgsPatch in ${
                  builtins.concatStringsSep " " (map (patch: "${patch}") (oldAttrs.patches or [ ]))
                }; do
                  if patch -p1 --fuzz=0 --force --silent --dry-run < "$nixpkgsPatch"; then
                    patch -p1 --fuzz=0 --force < "$nixpkgsPatch"
                  else
                    echo "skipped, does not apply to 2.10.0: $nixpkgsPatch"
                  fi
                done
              '';
              # The same for its edits: what does not fit is logged by --replace-warn and the message.
              postPatch = ''
                (
                ${lenient (oldAttrs.postPatch or "")}
                ) || echo "not all of nixpkgs' edits for 2.9.1 apply to 2.10.0"
              '';
              postInstall = lenient (oldAttrs.postInstall or "");
            });
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
    pname = "pytorch-python313-cuda13_0-sm90-armv9";
    # buildPythonPackage has already set the name from the old pname
    name = "pytorch-python313-cuda13_0-sm90-armv9-${oldAttrs.version}";

    # nixpkgs deletes this module, but PyTorch's install step needs it: include CMake's own.
    postPatch = (oldAttrs.postPatch or "") + ''
      mkdir -p cmake/Modules
      cat > cmake/Modules/FindCUDAToolkit.cmake << 'EOF'
      if(NOT CUDAToolkit_FOUND)
        include(''${CMAKE_ROOT}/Modules/FindCUDAToolkit.cmake)
      endif()
      EOF
    '';

    # The build runs setup.py, which passes environment variables on to CMake, but no flags of the derivation.
    preConfigure = (oldAttrs.preConfigure or "") + ''
      export CFLAGS="${builtins.concatStringsSep " " cpuFlags} ''${CFLAGS:-}"
      export CXXFLAGS="${builtins.concatStringsSep " " cpuFlags} ''${CXXFLAGS:-}"

      # setup.py, CMake and the wheel must agree on the version
      export PYTORCH_BUILD_VERSION=2.10.0
      export PYTORCH_BUILD_NUMBER=0
      echo 2.10.0 > version.txt

      # CUTLASS includes <cccl/...>; nixpkgs' CCCL has the headers without that folder
      cccl="$NIX_BUILD_TOP/cccl-compat"
      mkdir -p "$cccl/cccl"
      ln -sfn ${nixpkgs_pinned.cudaPackages.cuda_cccl}/include/cuda "$cccl/cccl/cuda"
      ln -sfn ${nixpkgs_pinned.cudaPackages.cuda_cccl}/include/cub "$cccl/cccl/cub"
      ln -sfn ${nixpkgs_pinned.cudaPackages.cuda_cccl}/include/thrust "$cccl/cccl/thrust"
      ln -sfn ${nixpkgs_pinned.cudaPackages.cuda_cccl}/include/nv "$cccl/cccl/nv"
      export CFLAGS="-I$cccl $CFLAGS"
      export CXXFLAGS="-I$cccl $CXXFLAGS"
      export CUDAFLAGS="-I$cccl ''${CUDAFLAGS:-}"

      # CMake cache variables: setup.py passes on CMAKE_* variables, and CMake includes this file first
      cat > "$NIX_BUILD_TOP/torchtailor.cmake" << 'EOF'
      set(TORCH_BUILD_VERSION "2.10.0" CACHE STRING "" FORCE)
      set(CUDA_VERSION "13.0" CACHE STRING "")
      EOF
      export CMAKE_PROJECT_TOP_LEVEL_INCLUDES="$NIX_BUILD_TOP/torchtailor.cmake"
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
      cpuISA = "armv9";
      # What it belongs to, for what is built on it
      nixpkgs = nixpkgs_pinned;
    };

    meta = (oldAttrs.meta or { }) // {
      description = "PyTorch 2.10.0 for SM90 (Hopper: H100, H200, GH200) and ARMv9";
      changelog = "https://github.com/pytorch/pytorch/releases/tag/v2.10.0";
      longDescription = ''
        GPU: compute capability 9.0, Hopper: H100, H200, GH200, H800, H20
        CUDA: 13.0
        Driver: NVIDIA 580.95.05 or newer (580.65.06 with minor-version compatibility)
        CPU: aarch64 with ARMv9 (Neoverse N2 (Azure Cobalt 100), V2 (Grace, Graviton4, Google Axion), V3 (Graviton5), V3AE (Thor), Cortex-X2 and later, X925+A725 (GB10), NVIDIA Olympus (Vera))
        Not on: Graviton3 / Neoverse V1 (Armv8.4-A, SVE but no SVE2), A64FX, AmpereOne (no SVE), Apple M-series (no non-streaming SVE)
        BLAS: cuBLAS on the GPU, OpenBLAS on the CPU
        Python: 3.13
        Triton, which torch.compile uses: 3.5.1 of nixpkgs; PyTorch 2.10.0 expects 3.6.0
      '';
      platforms = [ "aarch64-linux" ];
    };
  })
