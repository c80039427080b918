# PyTorch 2.10.0 for SM103 (Blackwell Ultra: B300, GB300) and AVX-512 BF16, CUDA 13.0, Python 3.13.
# Written by torchtailor: change the catalog and write again, not this file.
# torchtailor-content: sha256:a62d8a220d48f786c4c5720c19e78a86b083465be38d4aa622c119c0da644df8
{
  pkgs ? { stdenv.hostPlatform.system = builtins.currentSystem; },
}:

let
  # GPU: SM103 (Blackwell Ultra: B300, GB300)
  gpuArchSM = "10.3";

  # CPU: AVX-512 BF16
  cpuFlags = [
    "-mavx512f"
    "-mavx512dq"
    "-mavx512vl"
    "-mavx512bw"
    "-mavx512bf16"
    "-mfma"
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
                    cmakeCudaArchitecturesString = "103-real";
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
    pname = "pytorch210-python313-cuda13_0-sm103-avx512bf16";
    # buildPythonPackage has made the name already, so it is made again
    name = "pytorch210-python313-cuda13_0-sm103-avx512bf16-${oldAttrs.version}";

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
      gpuArch = "sm103";
      cpuISA = "avx512bf16";
    };

    meta = (oldAttrs.meta or { }) // {
      description = "PyTorch 2.10.0 for SM103 (Blackwell Ultra: B300, GB300) and AVX-512 BF16";
      longDescription = ''
        GPU: compute capability 10.3, Blackwell Ultra: B300, GB300
        CUDA: 13.0
        Driver: NVIDIA 580.95.05 or newer (580.65.06 by minor-version compatibility)
        CPU: x86_64 with AVX-512 BF16 (Intel Cooper Lake 2020, then Sapphire Rapids 2023 (NOT Ice Lake, Tiger Lake, Rocket Lake); AMD Zen 4 2022)
        BLAS: cuBLAS on the GPU, OpenBLAS on the CPU
        Python: 3.13
      '';
      platforms = [ "x86_64-linux" ];
    };
  })
