# Evaluates recipes unchanged, each against the stand-in at its pin, all in one process.
{
  recipes, # JSON: [ { path, system } ]
  pins, # JSON: revision -> the versions in it; "" stands for unknown revisions
}:

let
  known = builtins.fromJSON pins;

  pinOf =
    args:
    let
      url = if builtins.isString args then args else args.url;
      found = builtins.match ".*/([0-9a-f]{40})[.]tar[.]gz" url;
      rev = if found == null then "" else builtins.head found;
    in
    {
      standin = true;
      inherit url rev;
      sha256 = if builtins.isString args then null else args.sha256 or null;
    }
    // (known.${rev} or known."");

  evaluate =
    { path, system }:
    let
      file = /. + path;
      load = builtins.scopedImport scope;
      nixpkgs = pin: args: import ./nixpkgs.nix ({ inherit pin load; } // args);
      scope = {
        builtins = builtins // {
          fetchTarball = pinOf;
          currentSystem = system;
        };
        fetchTarball = pinOf;
        __findFile = _: name: pinOf "<${name}>";
        import =
          target:
          if builtins.isAttrs target && target.standin or false then
            args: nixpkgs target ({ inherit system; } // args)
          else if builtins.isPath target && builtins.dirOf target == builtins.dirOf file then
            load target
          else
            import target;
      };
      function = load file;
      base = nixpkgs (pinOf "flox") {
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
      arch = builtins.match ".*TORCH_CUDA_ARCH_LIST=\"([^\"]*)\".*" (
        builtins.replaceStrings [ "\n" ] [ " " ] (drv.preConfigure or "")
      );
      text = name: if builtins.isString (drv.${name} or null) then builtins.unsafeDiscardStringContext drv.${name} else "";
    in
    {
      inherit path;
      pname = drv.pname or "";
      name = drv.name or "";
      version = drv.version or "";
      drv = builtins.unsafeDiscardStringContext drv.drvPath;
      torch = standin != null;
      arch_list = if arch == null then null else builtins.head arch;
      gpu_targets = drv.gpuTargets or [ ];
      cuda = if drv.cudaSupport or false then drv.cudaPackages.cudaMajorMinorVersion else null;
      python = drv.pythonModule.pythonVersion or null;
      platforms = meta.platforms or [ ];
      description = meta.description or "";
      long_description = meta.longDescription or "";
      broken = meta.broken or false;
      allow_broken = standin.config.allowBroken or false;
      allow_unfree = standin.config.allowUnfree or false;
      blas = if standin == null then null else drv.blasProvider.pname or null;
      overlays = standin.overlays or 0;
      magma_patches = standin.magmaPatches or [ ];
      magma_targets = standin.magmaTargets or [ ];
      pin = standin.pin.rev or "";
      pin_hash = standin.pin.sha256 or null;
      patches = builtins.length (drv.patches or [ ]);
      cmake_flags = map toString (drv.cmakeFlags or [ ]);
      pre_patch = text "prePatch";
      post_patch = text "postPatch";
      pre_configure = text "preConfigure";
      pre_build = text "preBuild";
    };
in
map evaluate (builtins.fromJSON recipes)
