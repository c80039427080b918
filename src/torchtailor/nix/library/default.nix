# What the recipes of this tree call. They share one package set for each CUDA version, made when it is first used.
{
  system ? builtins.currentSystem,
  nixpkgs, # a nixpkgs as a function of its arguments
  gigabytesPerJob ? null, # limit the compilers by the builder's memory
}:

let
  catalog = import ./catalog.nix;
  underscored = builtins.replaceStrings [ "." ] [ "_" ];

  attributeOf =
    packages: name:
    packages.${name}
      or (throw "torchtailor: the given nixpkgs has no ${name}: give the nixpkgs that the recipe pins");

  packagesWith =
    config: overlays:
    nixpkgs {
      inherit system config overlays;
    };
  forCuda =
    cuda:
    packagesWith
      {
        allowUnfree = true;
        cudaSupport = true;
        # nixpkgs marks torch as broken with these
        allowBroken = builtins.elem (builtins.head (builtins.match "([0-9]+)[.].*" cuda)) catalog.brokenCuda;
      }
      [
        (final: prev: { cudaPackages = attributeOf final "cudaPackages_${underscored cuda}"; })
      ];
  withCuda = builtins.mapAttrs (cuda: _: forCuda cuda) catalog.toolkits;
  forCpu = {
    openblas = packagesWith { } [ ];
    mkl = packagesWith { allowUnfree = true; } [
      (final: prev: {
        blas = prev.blas.override { blasProvider = final.mkl; };
        lapack = prev.lapack.override { lapackProvider = final.mkl; };
      })
    ];
  };
  unfree = packagesWith { allowUnfree = true; } [ ];
  tool = import ./tool.nix ({ nixpkgs = unfree; } // import ./own.nix);

  packagesFor =
    {
      cuda ? null,
      blas ? "openblas",
      components ? { },
      ...
    }:
    if cuda == null then
      forCpu.${blas}
    else if components == { } then
      withCuda.${cuda}
    else
      withCuda.${cuda}
      // {
        cudaPackages = withCuda.${cuda}.cudaPackages.overrideScope (cfinal: cprev: components);
      };
  pythonOf =
    nixpkgs: python:
    attributeOf nixpkgs "python${builtins.replaceStrings [ "." ] [ "" ] python}Packages";

  tailored =
    row:
    import ./tailor.nix {
      nixpkgs = packagesFor row;
      inherit gigabytesPerJob;
      gpu = row.gpuArchSM or null;
      cpu = row.cpu or null;
      cpuFlags = row.cpuFlags or null;
      exports = row.exports or { };
    };
  metaOf =
    row:
    {
      inherit (row) description;
      platforms = [ "${catalog.isas.${row.cpu}.arch}-linux" ];
    }
    // (if row ? longDescription then { inherit (row) longDescription; } else { });
in
{
  # PyTorch from source: { name, version, python, cpu, description, gpuArchSM, cuda, blas, components, cpuFlags, exports }
  torch =
    row:
    (tailored row).torch (pythonOf (packagesFor row) row.python).torch {
      inherit (row) name version;
      meta = metaOf row;
    };

  # What is built on it: { name, package, version, python, cpu, description, gpuArchSM, cuda, torch }
  sibling =
    row:
    let
      package = (pythonOf (packagesFor row) row.python).${row.package};
      known = builtins.filter (
        source: source.package == row.package && source.version == row.version
      ) catalog.siblings;
      source =
        if package.version == row.version then
          null
        else if known == [ ] then
          throw "torchtailor: this is ${row.package} ${row.version}, and the given nixpkgs has ${package.version}"
        else
          builtins.head known;
    in
    (tailored row).sibling package {
      inherit (row) name torch;
      inherit source;
      meta = metaOf row;
    };

  # A CUDA package for one GPU: { package, version, cuda, gpuArchSM }
  component =
    row:
    let
      package = (tailored row).cudaPackages.${row.package};
      version =
        if row.package == "cudatoolkit" then
          (packagesFor row).cudaPackages.cuda_nvcc.version
        else
          package.version;
    in
    if version == row.version then
      package
    else
      throw "torchtailor: this is ${row.package} ${row.version}, and the given nixpkgs has ${version}";

  # A recipe with the components of another repository: { recipe, cuda, repository, components, library }
  torchWithComponents =
    {
      recipe,
      cuda,
      repository,
      components,
      library,
    }:
    let
      component =
        name:
        let
          file = repository + "/.flox/pkgs/${name}.nix";
          wanted = builtins.functionArgs (import file);
          arguments = builtins.intersectAttrs wanted { inherit library; };
        in
        if builtins.pathExists file then
          withCuda.${cuda}.callPackage file arguments
        else
          throw "torchtailor: there is no ${toString file}: clone the repository there, or give its path as cudaToolkitRepo";
    in
    import recipe {
      inherit library;
      components = builtins.mapAttrs (_: component) components;
    };

  # PyTorch from official wheels: { pname, version, python, cpu, officialWheels, imports, description, gpuArchSM, nvidia }
  wheels =
    row:
    import ./wheels.nix {
      nixpkgs = unfree;
      pythonPackages = pythonOf unfree row.python;
      torchtailor = tool;
      inherit (row)
        pname
        version
        officialWheels
        imports
        ;
      gpu = row.gpuArchSM or null;
      nvidia = row.nvidia or false;
      meta = metaOf row;
    };

  inherit tool;
}
