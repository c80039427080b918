# PyTorch 2.10.0 for SM86 (Ampere: A40, RTX A6000, RTX 3090 Ti) and ARMv8.2, CUDA 13.0, Python 3.13.
# Written by torchtailor: change the catalog and write again, not this file.
# torchtailor-content: sha256:1cb2d6f73044aa37687b2e6da6b22216267722cd79004f9e19e2f33f1a0cd4d2
{
  pkgs ? { stdenv.hostPlatform.system = builtins.currentSystem; },
}:

let
  # GPU: SM86 (Ampere: A40, RTX A6000, RTX 3090 Ti)
  gpuArchSM = "8.6";

  # CPU: ARMv8.2
  cpuFlags = [
    "-march=armv8.2-a+fp16+dotprod"
  ];

  nixpkgs_pinned =
    import
      (builtins.fetchTarball {
        url = "https://github.com/NixOS/nixpkgs/archive/6a030d535719c5190187c4cec156f335e95e3211.tar.gz";
        # sha256 is not known yet: `torchtailor recipes hash` finds it and writes it here
      })
      {
        inherit (pkgs.stdenv.hostPlatform) system;
        config = {
          allowUnfree = true;
          allowBroken = true; # nixpkgs marks its torch broken with CUDA 13
          cudaSupport = true;
        };
        overlays = [
          # Overlay 1: CUDA 13.0 for every package
          (final: prev: { cudaPackages = final.cudaPackages_13_0; })

          # Overlay 2: MAGMA for this GPU alone, and without clockRate, which CUDA 13 took out of cudaDeviceProp
          (final: prev: {
            magma =
              (prev.magma.override {
                cudaPackages = final.cudaPackages // {
                  flags = final.cudaPackages.flags // {
                    cudaCapabilities = [ gpuArchSM ];
                    cmakeCudaArchitecturesString = "86-real";
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
                  # Those of nixpkgs' patches for 2.9.1 that still fit are applied, the others are named in the log.
                  patches = [ ];
                  prePatch = (oldAttrs.prePatch or "") + ''
                    for nixpkgsPatch in ${
                      builtins.concatStringsSep " " (map (patch: "${patch}") (oldAttrs.patches or [ ]))
                    }; do
                      if patch -p1 --fuzz=0 --force --silent --dry-run < "$nixpkgsPatch"; then
                        patch -p1 --fuzz=0 --force < "$nixpkgsPatch"
                      else
                        echo "does not fit 2.10.0, left out: $nixpkgsPatch"
                      fi
                    done
                  '';
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
    pname = "pytorch210-python313-cuda13_0-sm86-armv8_2";
    # buildPythonPackage has made the name already, so it is made again
    name = "pytorch210-python313-cuda13_0-sm86-armv8_2-${oldAttrs.version}";

    # nixpkgs deletes PyTorch's own module, which PyTorch's install step wants: this one asks CMake's.
    postPatch = (oldAttrs.postPatch or "") + ''
      mkdir -p cmake/Modules
      cat > cmake/Modules/FindCUDAToolkit.cmake << 'EOF'
      if(NOT CUDAToolkit_FOUND)
        include(''${CMAKE_ROOT}/Modules/FindCUDAToolkit.cmake)
      endif()
      EOF
    '';

    # The build goes through setup.py: the environment reaches CMake, flags of the derivation do not.
    preConfigure = (oldAttrs.preConfigure or "") + ''
      export CFLAGS="${builtins.concatStringsSep " " cpuFlags} ''${CFLAGS:-}"
      export CXXFLAGS="${builtins.concatStringsSep " " cpuFlags} ''${CXXFLAGS:-}"

      # setup.py, CMake and the wheel must agree on the version
      export PYTORCH_BUILD_VERSION=2.10.0
      export PYTORCH_BUILD_NUMBER=0
      echo 2.10.0 > version.txt

      # CUTLASS includes <cccl/...>, which nixpkgs' CCCL has without that folder
      cccl="$NIX_BUILD_TOP/cccl-compat"
      mkdir -p "$cccl/cccl"
      ln -sfn ${nixpkgs_pinned.cudaPackages.cuda_cccl}/include/cuda "$cccl/cccl/cuda"
      ln -sfn ${nixpkgs_pinned.cudaPackages.cuda_cccl}/include/cub "$cccl/cccl/cub"
      ln -sfn ${nixpkgs_pinned.cudaPackages.cuda_cccl}/include/thrust "$cccl/cccl/thrust"
      ln -sfn ${nixpkgs_pinned.cudaPackages.cuda_cccl}/include/nv "$cccl/cccl/nv"
      export CFLAGS="-I$cccl $CFLAGS"
      export CXXFLAGS="-I$cccl $CXXFLAGS"
      export CUDAFLAGS="-I$cccl ''${CUDAFLAGS:-}"

      # Cache variables: setup.py passes on what begins with CMAKE_, and CMake reads this file first
      cat > "$NIX_BUILD_TOP/torchtailor.cmake" << 'EOF'
      set(TORCH_BUILD_VERSION "2.10.0" CACHE STRING "" FORCE)
      set(CUDA_VERSION "13.0" CACHE STRING "")
      EOF
      export CMAKE_PROJECT_TOP_LEVEL_INCLUDES="$NIX_BUILD_TOP/torchtailor.cmake"
    '';

    # nixpkgs takes MAX_JOBS from NIX_BUILD_CORES: no more compilers than memory has room for, 4 GB each.
    preBuild = ''
      room=$(awk '/^MemAvailable:/ { print int($2 / 1024 / 1024 / 4) }' /proc/meminfo)
      if [ "''${room:-0}" -lt 1 ]; then room=1; fi
      if [ "$room" -lt "$NIX_BUILD_CORES" ]; then export NIX_BUILD_CORES=$room; fi
    ''
    + (oldAttrs.preBuild or "");

    passthru = (oldAttrs.passthru or { }) // {
      gpuArch = "sm86";
      cpuISA = "armv8_2";
    };

    meta = (oldAttrs.meta or { }) // {
      description = "PyTorch 2.10.0 for SM86 (Ampere: A40, RTX A6000, RTX 3090 Ti) and ARMv8.2";
      longDescription = ''
        GPU: compute capability 8.6, Ampere: A40, RTX A6000, RTX 3090 Ti, A10, RTX A5000, RTX 3090
        CUDA: 13.0
        Driver: NVIDIA 580.95.05 or newer (580.65.06 by minor-version compatibility)
        CPU: aarch64 with ARMv8.2 (Neoverse N1 (Graviton2, Ampere Altra), Cortex-A75/A76/A78AE (Orin), Neoverse V1 (Graviton3), all Armv9 cores)
        Not on: Graviton1 (Cortex-A72, v8.0), Xavier Carmel (no dotprod), A64FX (no dotprod), ThunderX2
        BLAS: cuBLAS on the GPU, OpenBLAS on the CPU
        Python: 3.13
      '';
      platforms = [ "aarch64-linux" ];
    };
  })
