# PyTorch 2.10.0 for CPUs alone and AVX-512 VNNI, Python 3.13.
# Written by torchtailor: change the catalog and write again, not this file.
# torchtailor-content: sha256:a67ff3707c1b75db93cc5cdd2623275a102f17172cb0ea7ca2dd35913fa015f6
{
  pkgs ? { stdenv.hostPlatform.system = builtins.currentSystem; },
}:

let
  # CPU: AVX-512 VNNI
  cpuFlags = [
    "-mavx512f"
    "-mavx512dq"
    "-mavx512vl"
    "-mavx512bw"
    "-mavx512vnni"
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
  cudaSupport = false;
}).overrideAttrs
  (oldAttrs: {
    pname = "pytorch210-python313-cpu-avx512vnni";
    # buildPythonPackage has made the name already, so it is made again
    name = "pytorch210-python313-cpu-avx512vnni-${oldAttrs.version}";

    # The build goes through setup.py: the environment reaches CMake, flags of the derivation do not.
    preConfigure = (oldAttrs.preConfigure or "") + ''
      export CFLAGS="${builtins.concatStringsSep " " cpuFlags} ''${CFLAGS:-}"
      export CXXFLAGS="${builtins.concatStringsSep " " cpuFlags} ''${CXXFLAGS:-}"

      # setup.py, CMake and the wheel must agree on the version
      export PYTORCH_BUILD_VERSION=2.10.0
      export PYTORCH_BUILD_NUMBER=0
      echo 2.10.0 > version.txt

      # Cache variables: setup.py passes on what begins with CMAKE_, and CMake reads this file first
      cat > "$NIX_BUILD_TOP/torchtailor.cmake" << 'EOF'
      set(TORCH_BUILD_VERSION "2.10.0" CACHE STRING "" FORCE)
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
      cpuISA = "avx512vnni";
    };

    meta = (oldAttrs.meta or { }) // {
      description = "PyTorch 2.10.0 for CPUs alone and AVX-512 VNNI";
      longDescription = ''
        CPU: x86_64 with AVX-512 VNNI (Intel Cascade Lake 2019 and Ice Lake 2019 (NOT Skylake-SP); AMD Zen 4 2022)
        BLAS: OpenBLAS
        Python: 3.13
      '';
      platforms = [ "x86_64-linux" ];
    };
  })
