# A build with a dependency, phases and ninja's kind of progress.
{ pkgs ? { } }:

let
  job =
    name: needs:
    derivation {
      inherit name needs;
      system = builtins.currentSystem;
      builder = "/bin/sh";
      PATH = "/usr/bin:/bin";
      args = [
        "-c"
        ''
          echo '@nix {"action":"setPhase","phase":"buildPhase"}' >&2
          echo "cores: $NIX_BUILD_CORES"
          echo "[1/2] Building CXX object ${name}.o"
          echo "[2/2] Linking CXX shared library ${name}.so"
          mkdir -p $out/lib
          echo ${name} > $out/lib/${name}.so
        ''
      ];
    };
in
job "pytorch210-tiny-2.10.0" [ (job "magma-2.9.0" [ ]) ]
