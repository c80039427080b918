# PyTorch 2.10.0 for CPUs with AVX, Python 3.13.
{
  pkgs ? { stdenv.hostPlatform.system = builtins.currentSystem; },
  nixpkgsSource ? builtins.fetchTarball {
    url = "https://github.com/NixOS/nixpkgs/archive/6a030d535719c5190187c4cec156f335e95e3211.tar.gz";
    sha256 = "sha256-BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBA=";
  },
}:

let
  # CPU: AVX
  cpuFlags = [
    "-mavx"
    "-mno-fma"
    "-mno-bmi"
    "-mno-bmi2"
    "-mno-avx2"
  ];

  lenient = builtins.replaceStrings [ "--replace-fail" "rm cmake/" ] [ "--replace-warn" "rm -f cmake/" ];

  nixpkgs_pinned = import nixpkgsSource {
    inherit (pkgs.stdenv.hostPlatform) system;
    config = { };
    overlays = [
          # Overlay 1: PyTorch 2.10.0; nixpkgs has 2.9.1 at this pin
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
  cudaSupport = false;
}).overrideAttrs
  (oldAttrs: {
    pname = "pytorch-python313-cpu-avx";
    # buildPythonPackage has already set the name from the old pname
    name = "pytorch-python313-cpu-avx-${oldAttrs.version}";

    # The build runs setup.py, which passes environment variables on to CMake, but no flags of the derivation.
    preConfigure = (oldAttrs.preConfigure or "") + ''
      export CFLAGS="${builtins.concatStringsSep " " cpuFlags} ''${CFLAGS:-}"
      export CXXFLAGS="${builtins.concatStringsSep " " cpuFlags} ''${CXXFLAGS:-}"
      export USE_FBGEMM=0
      export USE_NNPACK=0

      # setup.py, CMake and the wheel must agree on the version
      export PYTORCH_BUILD_VERSION=2.10.0
      export PYTORCH_BUILD_NUMBER=0
      echo 2.10.0 > version.txt

      # CMake cache variables: setup.py passes on CMAKE_* variables, and CMake includes this file first
      cat > "$NIX_BUILD_TOP/torchtailor.cmake" << 'EOF'
      set(TORCH_BUILD_VERSION "2.10.0" CACHE STRING "" FORCE)
      set(C_AVX2_FOUND FALSE CACHE BOOL "")
      set(CXX_AVX2_FOUND FALSE CACHE BOOL "")
      set(C_AVX512_FOUND FALSE CACHE BOOL "")
      set(CXX_AVX512_FOUND FALSE CACHE BOOL "")
      set(CAFFE2_COMPILER_SUPPORTS_AVX2_EXTENSIONS FALSE CACHE BOOL "")
      set(CAFFE2_COMPILER_SUPPORTS_AVX512_EXTENSIONS FALSE CACHE BOOL "")
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
      cpuISA = "avx";
      # What it belongs to, for what is built on it
      nixpkgs = nixpkgs_pinned;
    };

    meta = (oldAttrs.meta or { }) // {
      description = "PyTorch 2.10.0 for CPUs with AVX";
      changelog = "https://github.com/pytorch/pytorch/releases/tag/v2.10.0";
      longDescription = ''
        CPU: x86_64 with AVX (Intel Sandy Bridge 2011; AMD Bulldozer 2011)
        BLAS: OpenBLAS
        Python: 3.13
        Triton, which torch.compile uses: 3.5.1 of nixpkgs; PyTorch 2.10.0 expects 3.6.0
        Disabled: FBGEMM, NNPACK and ATen's AVX2 and AVX-512 kernels, which need AVX2 or more
      '';
      platforms = [ "x86_64-linux" ];
    };
  })
