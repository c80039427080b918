{
  description = "Makes PyTorch fit one machine: recipes for Nix, an overlay, official wheels cut to one GPU";

  # The nixpkgs that the recipes in .flox pin: a revision, so that evaluation is pure without a hash in this file.
  # `torchtailor recipes hash` adds narHash.
  inputs.nixpkgs = {
    type = "github";
    owner = "NixOS";
    repo = "nixpkgs";
    rev = "6a030d535719c5190187c4cec156f335e95e3211";
    flake = false;
  };

  outputs =
    { self, nixpkgs }:
    let
      systems = [
        "x86_64-linux"
        "aarch64-linux"
      ];
      eachSystem =
        f:
        builtins.listToAttrs (
          map (system: {
            name = system;
            value = f system;
          }) systems
        );
      pkgsFor =
        system:
        import nixpkgs {
          inherit system;
          config = { };
          overlays = [ ];
        };
      # Only the recipes of release main pin it. It is no input, which `nix flake show` would have to fetch.
      nixpkgsOfMain = builtins.fetchTree {
        type = "github";
        owner = "NixOS";
        repo = "nixpkgs";
        rev = "fe5e41d7ffc0421f0913e8472ce6238ed0daf8e3";
      };
      releases = [
        {
          release = "cuda-13_0";
          tree = ./.flox;
          nixpkgsSource = nixpkgs;
        }
        {
          release = "cuda-12_9";
          tree = ./recipes/cuda-12_9/.flox;
          nixpkgsSource = nixpkgs;
        }
        {
          release = "main";
          tree = ./recipes/main/.flox;
          nixpkgsSource = nixpkgsOfMain;
        }
      ];
      # Releases have CPU recipes of the same names: the first one's keep theirs, others get the release's name at the end.
      addRelease =
        system: all:
        {
          release,
          tree,
          nixpkgsSource,
        }:
        let
          recipes = import tree { inherit system nixpkgsSource; };
        in
        all
        // builtins.listToAttrs (
          map (name: {
            name = if all ? ${name} then "${name}-${release}" else name;
            value = recipes.${name};
          }) (builtins.attrNames recipes)
        );
      library = ./.flox/torchtailor;
      version = builtins.head (
        builtins.match ".*__version__ = \"([^\"]+)\".*" (
          builtins.readFile ./src/torchtailor/core/version.py
        )
      );
      toolFor =
        pkgs:
        import (library + "/tool.nix") {
          nixpkgs = pkgs;
          src = self;
          inherit version;
          fromSource = true;
        };
    in
    {
      packages = eachSystem (system: rec {
        torchtailor = toolFor (pkgsFor system);
        default = torchtailor;
      });

      # Every recipe of every release: `nix build .#pytorch-python313-cuda13_0-sm90-avx512`, `.#pytorch-python313-cpu-avx2-main`.
      legacyPackages = eachSystem (system: builtins.foldl' (addRelease system) { } releases);

      lib = {
        # python3Packages.torch-bin cut to one GPU: { torch, gpu, nvidia ? false }
        tailor =
          { torch, ... }@args:
          import (library + "/bin.nix") (
            { torchtailor = self.packages.${torch.stdenv.hostPlatform.system}.torchtailor; } // args
          );

        # An overlay whose torch and CUDA packages are compiled for one GPU and one CPU: { gpu ? null, cpu ? null }
        overlay = import (library + "/overlay.nix") { tool = toolFor; };
      };

      # By config.torchtailor = { gpu = "9.0"; cpu = "avx512"; }; the GPU is that of config.cudaCapabilities otherwise.
      overlays.default = self.lib.overlay { };

      devShells = eachSystem (
        system:
        let
          pkgs = pkgsFor system;
        in
        {
          default = pkgs.mkShell {
            packages = [
              pkgs.python313
              pkgs.uv
              pkgs.patchelf
              pkgs.cmake
              pkgs.ninja
              pkgs.nix-eval-jobs
            ];
          };
        }
      );
    };
}
