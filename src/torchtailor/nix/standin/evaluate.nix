# Evaluates recipes unchanged, each against the stand-in at its pin, all in one process.
{
  recipes, # JSON: [ { path, system } ]
  pins, # JSON: revision -> the versions in it; "" stands for the machine's own nixpkgs
}:

let
  known = builtins.fromJSON pins;

  pinOf =
    args:
    let
      url = if builtins.isString args then args else args.url;
      found = builtins.match ".*/([0-9a-f]{7,40})[.](tar[.]gz|zip)" url;
      given = if found == null then "" else builtins.head found;
      length = builtins.stringLength given;
      full = builtins.filter (rev: builtins.substring 0 length rev == given && rev != "") (
        builtins.attrNames known
      );
      rev = if given == "" || full == [ ] then "" else builtins.head full;
      own = builtins.elem url [
        "<nixpkgs>"
        "machine"
      ];
    in
    {
      standin = true;
      inherit url rev;
      sha256 = if builtins.isString args then null else args.sha256 or null;
    }
    // (if rev == "" && !own then notFetched url else known.${rev});

  notFetched =
    url:
    throw "torchtailor does not fetch ${
      if builtins.match ".*/nixpkgs/.*" url == null then "" else "nixpkgs at "
    }${url}";

  # nixpkgs by a Git revision.
  gitPinOf =
    args:
    let
      url = if builtins.isString args then args else args.url or args.repo or "a repository";
      name = builtins.baseNameOf url;
    in
    if args ? rev && (name == "nixpkgs" || name == "nixpkgs.git") then
      pinOf { url = "https://github.com/NixOS/nixpkgs/archive/${args.rev}.tar.gz"; }
    else
      notFetched url;

  evaluate =
    { path, system }:
    let
      file = /. + path;
      load = builtins.scopedImport scope;
      nixpkgs = pin: args: import ./nixpkgs.nix ({ inherit pin load; } // args);
      scope = {
        builtins = builtins // {
          fetchTarball = pinOf;
          fetchGit = gitPinOf;
          fetchTree = gitPinOf;
          getFlake = notFetched;
          currentSystem = system;
        };
        fetchTarball = pinOf;
        __findFile = _: name: pinOf "<${name}>";
        import =
          target:
          if builtins.isAttrs target && target.standin or false then
            args: nixpkgs target ({ inherit system; } // args)
          else if builtins.isPath target && builtins.baseNameOf target != "torchtailor" then
            load target # with the same stand-ins; not the library, which fetches nothing
          else
            import target;
      };
      function = load file;
      base = nixpkgs (pinOf "machine") {
        inherit system;
        config.allowUnfree = true;
      };
      drv =
        if builtins.isFunction function then
          function (builtins.intersectAttrs (builtins.functionArgs function) base)
        else
          function;
      meta = drv.meta or { };
      standin = drv.passthru.standin or null;
      exported = builtins.match ".*TORCH_CUDA_ARCH_LIST=\"([^\"]*)\".*" (
        builtins.replaceStrings [ "\n" ] [ " " ] (drv.preConfigure or "")
      );
      arch =
        if exported == null && drv ? env.TORCH_CUDA_ARCH_LIST then
          [ drv.env.TORCH_CUDA_ARCH_LIST ]
        else
          exported;
      text =
        name:
        if builtins.isString (drv.${name} or null) then
          builtins.unsafeDiscardStringContext drv.${name}
        else
          "";
    in
    {
      inherit path;
      pname = drv.pname or "";
      name = drv.name or "";
      version = drv.version or "";
      drv = builtins.unsafeDiscardStringContext drv.drvPath;
      torch = (standin.kind or null) == "torch";
      nccl_targets = standin.ncclTargets or [ ];
      changelog = meta.changelog or "";
      on = if drv ? torch then drv.torch.pname else null;
      arch_list = if arch == null then null else builtins.head arch;
      cuda =
        if drv.cudaSupport or false && drv ? cudaPackages then
          drv.cudaPackages.cudaMajorMinorVersion
        else
          null;
      python = drv.pythonModule.pythonVersion or null;
      platforms = meta.platforms or [ ];
      description = meta.description or "";
      long_description = meta.longDescription or "";
      broken = meta.broken or false;
      allow_broken = standin.config.allowBroken or false;
      blas = drv.blasProvider.pname or null;
      capabilities = drv.cudaCapabilities or [ ];
      magma_patches = standin.magmaPatches or [ ];
      magma_targets = standin.magmaTargets or [ ];
      pin = standin.pin.rev or "";
      pin_hash = standin.pin.sha256 or null;
      patches = builtins.length (drv.patches or [ ]);
      cmake_flags = map toString (drv.cmakeFlags or [ ]);
      pre_patch = text "prePatch";
      post_patch = text "postPatch";
      post_install = text "postInstall";
      pre_configure = text "preConfigure";
      pre_build = text "preBuild";
    };
in
map evaluate (builtins.fromJSON recipes)
