# What one GPU and one CPU change in nixpkgs. Recipes, the overlay and the flake all decide here.
{
  nixpkgs, # a package set; its cudaPackages is the CUDA that is used
  gpu ? null, # a compute capability: "9.0"
  cpu ? null, # an instruction set: "avx512", "armv9"
  cpuFlags ? null, # compiler flags instead of the instruction set's own
  exports ? { }, # environment variables of the build
  gigabytesPerJob ? null, # limit the compilers by the builder's memory; null: by NIX_BUILD_CORES alone
  cudaPackages ? null, # those of the GPU, where the package set already has them
  magma ? null,
}@args:

let
  catalog = import ./catalog.nix;
  inherit (nixpkgs) lib;
  inherit (nixpkgs.stdenv.hostPlatform) system;
  fail = message: throw "torchtailor: ${message}";
  digits = builtins.replaceStrings [ "." ] [ "" ];

  cudaPackages = args.cudaPackages or (nixpkgs.cudaPackages.overrideScope extension);
  magma = args.magma or (fixMagma (nixpkgs.magma-cuda-static.override { inherit cudaPackages; }));

  cuda = nixpkgs.cudaPackages.cudaMajorMinorVersion;
  cudaMajor = builtins.head (builtins.match "([0-9]+)[.].*" cuda);
  capability = lib.removeSuffix "a" (lib.removeSuffix "f" gpu);
  compiledBy = lib.filter (toolkit: lib.elem capability catalog.toolkits.${toolkit}) (
    lib.attrNames catalog.toolkits
  );
  target =
    if gpu == null then
      null
    else if !(builtins.isString gpu) then
      fail "gpu must be a compute capability in quotes, such as \"9.0\", and not a ${builtins.typeOf gpu}"
    else if builtins.match "[0-9]{1,2}[.][0-9][af]?" gpu == null then
      fail "gpu must be a compute capability such as 9.0, not ${gpu}"
    else if
      gpu != capability && lib.versionOlder capability (if lib.hasSuffix "a" gpu then "9.0" else "10.0")
    then
      fail "compute capability ${capability} has no code of its own: ${gpu} does not exist"
    else if !nixpkgs.stdenv.hostPlatform.isLinux then
      fail "CUDA is for Linux, and this is ${system}"
    else if compiledBy == [ ] then
      fail "there is no GPU with compute capability ${gpu}"
    else if catalog.toolkits ? ${cuda} && !(lib.elem cuda compiledBy) then
      fail "CUDA ${cuda} cannot compile for compute capability ${gpu}; ${lib.concatStringsSep ", " compiledBy} can"
    else if capabilities != null && !(capabilities ? ${gpu}) then
      fail "the given nixpkgs does not know compute capability ${gpu}: ${toString (lib.attrNames capabilities)}"
    else if !(supported.from == null || lib.versionAtLeast cuda supported.from) then
      fail "CUDA ${cuda} cannot compile for compute capability ${gpu}: it needs ${supported.from}"
    else if !(supported.to == null || lib.versionAtLeast supported.to cuda) then
      fail "nixpkgs does not compile for compute capability ${gpu} with CUDA ${cuda}: only up to ${supported.to}"
    else if supported.jetson && nixpkgs.stdenv.hostPlatform.isx86_64 then
      fail "compute capability ${gpu} is a Jetson's, which is aarch64-linux, and this is ${system}"
    else
      gpu;

  # nixpkgs refuses what its own table does not have, in the words of its assertions.
  capabilities = nixpkgs._cuda.db.cudaCapabilityToInfo or null;
  supported = {
    from = capabilities.${gpu}.minCudaMajorMinorVersion or null;
    to = capabilities.${gpu}.maxCudaMajorMinorVersion or null;
    jetson = capabilities.${gpu}.isJetson or false;
  };

  # For Jetsons before Thor, NVIDIA has a CUDA of its own, which ended with 12.9.
  hasCuda = lib.meta.availableOn nixpkgs.stdenv.hostPlatform cudaPackages.cuda_nvcc;

  isa =
    if cpu == null then
      null
    else if !(builtins.isString cpu) then
      fail "cpu must be an instruction set in quotes, such as \"avx512\", and not a ${builtins.typeOf cpu}"
    else if !(catalog.isas ? ${cpu}) then
      fail "there is no instruction set ${cpu}: ${toString (lib.attrNames catalog.isas)}"
    else if "${catalog.isas.${cpu}.arch}-linux" != system then
      fail "${cpu} is for ${catalog.isas.${cpu}.arch}-linux, and this is ${system}"
    else
      catalog.isas.${cpu};
  flags =
    if cpuFlags != null then
      cpuFlags
    else if isa == null then
      [ ]
    else
      isa.flags;

  # Parts that the GPU or the CPU cannot run.
  without = lib.filter (
    row: (cpu != null && row.isa == cpu) || (gpu != null && row.gpu == capability)
  ) catalog.without;
  variables = exports // builtins.foldl' (all: row: all // row.exports) { } without;

  # CUDA 13 removed what MAGMA reads, and has CCCL's headers where CUTLASS does not look.
  isCuda13 = target != null && cudaMajor == catalog.magma.cudaMajor;

  # For a CUDA package set: its packages are compiled for the GPU, without PTX.
  extension =
    cfinal: cprev:
    lib.optionalAttrs (gpu != null) {
      backendStdenv = cprev.backendStdenv.override {
        config = nixpkgs.config // {
          cudaCapabilities = [ target ];
          cudaForwardCompat = false;
        };
      };
      # A cuDNN that has no code for the GPU refuses it. PyTorch is then built without, but nixpkgs still lists it.
      cudnn =
        if cprev.cudnn.meta.available or true then
          cprev.cudnn
        else
          cprev.cudnn.override { inherit (cprev) backendStdenv; };
    };

  fixMagma =
    package:
    if !isCuda13 then
      package
    else
      package.overrideAttrs (oldAttrs: {
        patches = (oldAttrs.patches or [ ]) ++ [
          (nixpkgs.fetchpatch { inherit (catalog.magma) name url hash; })
        ];
      });

  # The source of a version that nixpkgs does not have; null for nixpkgs' own.
  sourceOf =
    torch: version:
    let
      found = lib.filter (
        source: source.version == version && source.on == torch.version
      ) catalog.sources;
    in
    if version == null || version == torch.version then
      null
    else if found == [ ] then
      fail "this is PyTorch ${version}, and the given nixpkgs has ${torch.version}: give the nixpkgs that the recipe pins"
    else
      builtins.head found;

  cmakeLines =
    source:
    lib.optionals (source != null) (
      [ ''set(TORCH_BUILD_VERSION "${source.version}" CACHE STRING "" FORCE)'' ]
      ++ lib.optional (target != null) ''set(CUDA_VERSION "${cuda}" CACHE STRING "")''
    )
    ++ map (name: ''set(${name} FALSE CACHE BOOL "")'') (lib.concatMap (row: row.cache) without);

  # The build runs setup.py, which passes environment variables on to CMake, but no flags of the derivation.
  configure =
    source:
    lib.optionalString (flags != [ ]) ''
      export CFLAGS="${toString flags} ''${CFLAGS:-}"
      export CXXFLAGS="${toString flags} ''${CXXFLAGS:-}"
    ''
    + lib.concatStrings (map (name: "export ${name}=${variables.${name}}\n") (lib.attrNames variables))
    + lib.optionalString (source != null) ''
      echo ${source.version} > version.txt
    ''
    + lib.optionalString isCuda13 ''
      # CUTLASS includes <cccl/...>; nixpkgs' CCCL has the headers without that folder
      cccl="$NIX_BUILD_TOP/cccl-compat"
      mkdir -p "$cccl/cccl"
      for folder in cuda cub thrust nv; do
        ln -sfn ${cudaPackages.cuda_cccl}/include/$folder "$cccl/cccl/$folder"
      done
      export CFLAGS="-I$cccl ''${CFLAGS:-}"
      export CXXFLAGS="-I$cccl ''${CXXFLAGS:-}"
      export CUDAFLAGS="-I$cccl ''${CUDAFLAGS:-}"
    ''
    + lib.optionalString (cmakeLines source != [ ]) ''
      # CMake cache variables: setup.py passes on CMAKE_* variables, and CMake includes this file first
      cat > "$NIX_BUILD_TOP/torchtailor.cmake" << 'EOF'
      ${lib.concatStringsSep "\n" (cmakeLines source)}
      EOF
      export CMAKE_PROJECT_TOP_LEVEL_INCLUDES="$NIX_BUILD_TOP/torchtailor.cmake"
    '';

  jobs = lib.optionalString (gigabytesPerJob != null && gigabytes) ''
    room=$(awk '/^MemAvailable:/ { print int($2 / 1024 / 1024 / ${toString gigabytesPerJob}) }' /proc/meminfo)
    if [ "''${room:-0}" -lt 1 ]; then room=1; fi
    if [ "$room" -lt "$NIX_BUILD_CORES" ]; then export NIX_BUILD_CORES=$room; fi
  '';

  gigabytes =
    if builtins.isInt gigabytesPerJob && gigabytesPerJob > 0 then
      true
    else
      fail "gigabytesPerJob must be a whole number above 0";

  # nixpkgs' patches and edits are for another version: what does not fit fails. Only the bound on setuptools, which
  # changes from version to version, is removed whatever it is.
  upgrade =
    source: oldAttrs:
    let
      edits = oldAttrs.postPatch or "";
      bound = builtins.match ''.*--replace-fail ("setuptools[^"]*") "setuptools".*'' (
        builtins.replaceStrings [ "\n" ] [ " " ] edits
      );
    in
    {
      inherit (source) version;
      src = nixpkgs.fetchFromGitHub {
        owner = "pytorch";
        repo = "pytorch";
        inherit (source) rev hash;
        fetchSubmodules = true;
      };
      PYTORCH_BUILD_VERSION = source.version;
      PYTORCH_BUILD_NUMBER = 0;
      postPatch = ''
        sed -i -E 's/"setuptools[<>=!~][^"]*"/"setuptools"/' pyproject.toml
      ''
      + (
        if bound == null then
          edits
        else
          builtins.replaceStrings [ (builtins.head bound) ] [ "'\"setuptools\"'" ] edits
      )
      # nixpkgs deletes this module, but PyTorch's install step needs it: include CMake's own.
      + lib.optionalString (target != null) ''
        mkdir -p cmake/Modules
        cat > cmake/Modules/FindCUDAToolkit.cmake << 'EOF'
        if(NOT CUDAToolkit_FOUND)
          include(''${CMAKE_ROOT}/Modules/FindCUDAToolkit.cmake)
        endif()
        EOF
      '';
    };

  describe =
    {
      name ? null,
      meta ? { },
      ...
    }:
    package: source: oldAttrs:
    lib.optionalAttrs (name != null) {
      pname = name;
      # buildPythonPackage has already set the name from the old pname
      name = "${name}-${if source == null then package.version else source.version}";
    }
    // {
      meta =
        (oldAttrs.meta or { })
        // lib.optionalAttrs (source != null) { inherit (source) changelog; }
        // meta;
    };
in
{
  inherit
    cudaPackages
    magma
    extension
    fixMagma
    ;
  changes = target != null || flags != [ ] || variables != { };

  # torch for the GPU and the CPU; `version` throws if it is neither nixpkgs' own nor one that can be built from it.
  torch =
    torch:
    {
      version ? null,
      ...
    }@args:
    let
      source = sourceOf torch version;
    in
    (
      if torch ? cpuISA then
        fail "this PyTorch is already tailored: use the overlay once"
      else if target == null then
        torch
      else if !hasCuda then
        fail "the given nixpkgs has no CUDA ${cuda} for compute capability ${gpu} on ${system}: give it an older cudaPackages"
      else
        torch.override {
          cudaSupport = true;
          gpuTargets = [ target ];
          inherit cudaPackages;
          magma-cuda-static = magma;
        }
    ).overrideAttrs
      (
        oldAttrs:
        lib.optionalAttrs (source != null) (upgrade source oldAttrs)
        // describe args torch source oldAttrs
        // lib.optionalAttrs (jobs != "") { preBuild = jobs + (oldAttrs.preBuild or ""); }
        // {
          preConfigure = (oldAttrs.preConfigure or "") + configure source;
          passthru =
            (oldAttrs.passthru or { })
            // {
              cpuISA = cpu;
            }
            // lib.optionalAttrs (target != null) {
              gpuArch = "sm${digits target}";
              cudaCapabilities = [ target ];
            };
        }
      );

  # A package that is built on such a torch.
  sibling =
    package:
    {
      torch,
      source ? null,
      ...
    }@args:
    (package.override { inherit torch; }).overrideAttrs (
      oldAttrs:
      lib.optionalAttrs (source != null) {
        inherit (source) version;
        src = nixpkgs.fetchFromGitHub {
          owner = "pytorch";
          inherit (source) repo rev hash;
        };
      }
      // describe args package source oldAttrs
      // {
        env =
          (oldAttrs.env or { }) // lib.optionalAttrs (target != null) { TORCH_CUDA_ARCH_LIST = target; };
        preConfigure =
          (oldAttrs.preConfigure or "")
          + lib.optionalString (flags != [ ]) ''
            export CFLAGS="${toString flags} ''${CFLAGS:-}"
            export CXXFLAGS="${toString flags} ''${CXXFLAGS:-}"
          '';
        passthru = (oldAttrs.passthru or { }) // {
          inherit torch;
        };
      }
    );
}
