# A stand-in for nixpkgs, strict where nixpkgs is strict: unknown override arguments, unknown attributes, CUDA and
# Python sets that the pin does not have are errors. It models only the parts of nixpkgs that PyTorch recipes use.
{
  pin, # { url, rev, sha256, torch, cuda, aliases, pythons, broken_cuda, cudnn_refuses, triton, torchvision, torchaudio }
  load ? import, # how callPackage reads a file
  system ? builtins.currentSystem,
  localSystem ? { inherit system; },
  config ? { },
  overlays ? [ ],
}:

let
  platform = localSystem.system;

  lib = rec {
    inherit (builtins)
      attrNames
      attrValues
      concatMap
      concatStringsSep
      elem
      elemAt
      filter
      head
      isAttrs
      isList
      isString
      length
      listToAttrs
      mapAttrs
      match
      removeAttrs
      replaceStrings
      tail
      ;
    fakeHash = "sha256-AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
    fakeSha256 = "0000000000000000000000000000000000000000000000000000000000000000";
    hasPrefix = prefix: text: builtins.substring 0 (builtins.stringLength prefix) text == prefix;
    hasInfix = infix: text: replaceStrings [ infix ] [ "" ] text != text;
    hasSuffix =
      suffix: text:
      let
        from = builtins.stringLength text - builtins.stringLength suffix;
      in
      from >= 0 && builtins.substring from (-1) text == suffix;
    optional = condition: value: if condition then [ value ] else [ ];
    optionals = condition: values: if condition then values else [ ];
    optionalString = condition: text: if condition then text else "";
    optionalAttrs = condition: attrs: if condition then attrs else { };
    concatStrings = concatStringsSep "";
    removeSuffix =
      suffix: text:
      if hasSuffix suffix text then
        builtins.substring 0 (builtins.stringLength text - builtins.stringLength suffix) text
      else
        text;
    concatMapStringsSep =
      separator: f: list:
      concatStringsSep separator (map f list);
    toList = value: if isList value then value else [ value ];
    getOutput = output: package: package.${output} or package;
    getDev = getOutput "dev";
    getLib = getOutput "lib";
    getBin = getOutput "bin";
    getName = package: package.pname or package.name;
    versionAtLeast = a: b: builtins.compareVersions a b >= 0;
    versionOlder = a: b: builtins.compareVersions a b < 0;
    cmakeFeature = name: value: "-D${name}:STRING=${value}";
    cmakeBool = name: value: "-D${name}:BOOL=${if value then "TRUE" else "FALSE"}";
    escapeShellArg = text: "'${text}'";
    meta.availableOn =
      hostPlatform: package: !(elem hostPlatform.system (package.meta.badPlatforms or [ ]));
    findFirst =
      test: default: list:
      let
        found = filter test list;
      in
      if found == [ ] then default else head found;
    licenses = {
      bsd3.free = true;
      mit.free = true;
      unfreeRedistributable.free = false;
    };
    sourceTypes.binaryNativeCode.isSource = false;
    platforms = {
      linux = [
        "x86_64-linux"
        "aarch64-linux"
      ];
      darwin = [
        "x86_64-darwin"
        "aarch64-darwin"
      ];
    };
    fix =
      f:
      let
        result = f result;
      in
      result;
    # `override` after `overrideAttrs` keeps what overrideAttrs did, as in nixpkgs
    makeOverridable =
      f: args:
      let
        result = f args;
        again = new: makeOverridable f (args // (if builtins.isFunction new then new args else new));
      in
      result
      // {
        override = again;
      }
      // optionalAttrs (result ? overrideAttrs) {
        overrideAttrs = change: makeOverridable (newArgs: (f newArgs).overrideAttrs change) args;
      };
  };

  plain = value: if builtins.isBool value then (if value then "1" else "") else value;

  mkDerivation =
    attrs:
    let
      env = attrs.env or { };
      overlap = builtins.attrNames (builtins.intersectAttrs env attrs);
      name = attrs.name or "${attrs.pname}-${attrs.version}";
      environment = builtins.mapAttrs (_: plain) (
        env
        // removeAttrs attrs [
          "env"
          "meta"
          "passthru"
        ]
      );
      drv =
        if overlap != [ ] then
          throw "The `env` attribute set cannot contain any attributes passed to derivation: ${toString overlap}"
        else
          derivation (
            environment
            // {
              inherit name;
              system = platform;
              builder = "/bin/sh";
              args = [
                "-c"
                ": > $out"
              ];
            }
          );
    in
    removeAttrs attrs [ "outputs" ]
    // {
      inherit name;
      inherit (drv) drvPath outPath type;
      out = drv;
      passthru = attrs.passthru or { };
      meta = attrs.meta or { };
      overrideAttrs =
        change:
        let
          once = change attrs;
          new = if builtins.isFunction once then (change attrs) attrs else once;
        in
        if builtins.isAttrs new then
          mkDerivation (attrs // new)
        else
          throw "overrideAttrs wants an attribute set";
    }
    // (attrs.passthru or { });

  package =
    pname: version: extra:
    mkDerivation ({ inherit pname version; } // extra);

  fetcher =
    kind: required: args:
    let
      given = args.hash or args.sha256 or "";
    in
    if builtins.filter (name: !(args ? ${name})) required != [ ] then
      throw "${kind}: ${toString required} are required"
    else if given == "" then
      package kind "0" { outputHash = ""; }
    else
      package kind "0" { outputHash = given; };

  componentVersions = {
    "13.0" = {
      cuda_nvcc = "13.0.88";
      cudnn = "9.13.0.50";
      nccl = "2.28.7-1";
      libcusparse_lt = "0.8.1.1";
    };
  };

  # What nixpkgs knows, which is more than its defaults.
  capabilities = [
    "5.0"
    "5.2"
    "6.0"
    "6.1"
    "7.0"
    "7.2"
    "7.5"
    "8.0"
    "8.6"
    "8.7"
    "8.9"
    "9.0"
    "10.0"
    "10.1"
    "10.3"
    "11.0"
    "12.0"
    "12.1"
  ];
  defaults = [
    "7.5"
    "8.0"
    "8.6"
    "8.9"
    "9.0"
    "10.0"
    "12.0"
  ];
  digits = builtins.replaceStrings [ "." ] [ "" ];

  # What nixpkgs decides from its configuration, for every package of a CUDA set.
  backendStdenv =
    { config }:
    let
      wanted = config.cudaCapabilities or [ ];
      unknown = builtins.filter (capability: !(lib.elem capability capabilities)) wanted;
    in
    {
      inherit wanted;
      cudaForwardCompat = config.cudaForwardCompat or true;
      cudaCapabilities =
        if unknown != [ ] then
          throw "cudaCapabilities has ${toString unknown}, which nixpkgs does not know"
        else if wanted == [ ] then
          defaults
        else
          wanted;
    };

  flagsOf =
    { cudaCapabilities, cudaForwardCompat, ... }:
    {
      inherit cudaCapabilities;
      cmakeCudaArchitecturesString = lib.concatMapStringsSep ";" digits cudaCapabilities;
      gencodeString = lib.concatStringsSep " " (
        map (c: "-gencode=arch=compute_${digits c},code=sm_${digits c}") cudaCapabilities
        ++ lib.optional cudaForwardCompat "-gencode=arch=compute_90,code=compute_90"
      );
    };

  # `extensions` are applied to every CUDA set.
  # nixpkgs' table of compute capabilities, as at the newer pin.
  capability = isJetson: minCudaMajorMinorVersion: maxCudaMajorMinorVersion: {
    inherit isJetson minCudaMajorMinorVersion maxCudaMajorMinorVersion;
  };
  cudaCapabilityToInfo = {
    "10.0" = capability false "12.7" null;
    "10.0a" = capability false "12.7" null;
    "10.0f" = capability false "12.9" null;
    "10.1" = capability true "12.7" "12.9";
    "10.1a" = capability true "12.7" "12.9";
    "10.1f" = capability true "12.9" "12.9";
    "10.3" = capability false "12.9" null;
    "10.3a" = capability false "12.9" null;
    "10.3f" = capability false "12.9" null;
    "11.0" = capability true "13.0" null;
    "11.0a" = capability true "13.0" null;
    "11.0f" = capability true "13.0" null;
    "12.0" = capability false "12.8" null;
    "12.0a" = capability false "12.8" null;
    "12.0f" = capability false "12.9" null;
    "12.1" = capability false "12.9" null;
    "12.1a" = capability false "12.9" null;
    "12.1f" = capability false "12.9" null;
    "3.5" = capability false "10.0" "11.8";
    "3.7" = capability false "10.0" "11.8";
    "5.0" = capability false "10.0" "12.9";
    "5.2" = capability false "10.0" "12.9";
    "6.0" = capability false "10.0" "12.9";
    "6.1" = capability false "10.0" "12.9";
    "7.0" = capability false "10.0" "12.9";
    "7.2" = capability true "10.0" "12.2";
    "7.5" = capability false "10.0" null;
    "8.0" = capability false "11.2" null;
    "8.6" = capability false "11.2" null;
    "8.7" = capability true "11.4" null;
    "8.9" = capability false "11.8" null;
    "9.0" = capability false "11.8" null;
    "9.0a" = capability false "12.0" null;
  };

  cudaConfig = extensions: {
    inherit extensions;
    db = { inherit cudaCapabilityToInfo; };
    extend = change: cudaConfig (change (cudaConfig extensions) (cudaConfig extensions)).extensions;
  };

  cudaSet =
    pkgs: version:
    let
      names = [
        "cuda_cccl"
        "cuda_cudart"
        "cuda_cupti"
        "cuda_nvml_dev"
        "cuda_nvrtc"
        "cuda_nvtx"
        "cuda_profiler_api"
        "cudatoolkit"
        "libcublas"
        "libcufft"
        "libcufile"
        "libcurand"
        "libcusolver"
        "libcusparse"
        "libcusparse_lt"
        "libnvshmem"
      ];
      scope =
        extra:
        let
          base =
            builtins.listToAttrs (
              map (name: {
                inherit name;
                value = package name (componentVersions.${version}.${name} or version) { };
              }) names
            )
            // {
              cudaMajorMinorVersion = version;
              backendStdenv = lib.makeOverridable backendStdenv { inherit config; };
              flags = flagsOf self.backendStdenv;
              # NVIDIA has no CUDA 13 for Jetsons before Thor.
              cuda_nvcc = package "cuda_nvcc" (componentVersions.${version}.cuda_nvcc or version) {
                meta.badPlatforms = lib.optionals (
                  lib.versionAtLeast version "13.0" && lib.elem "8.7" self.backendStdenv.wanted
                ) [ "aarch64-linux" ];
              };
              cudnn = lib.makeOverridable (
                { backendStdenv }:
                let
                  refused = builtins.filter (
                    c: lib.elem c (pin.cudnn_refuses.${version} or [ ])
                  ) backendStdenv.wanted;
                in
                package "cudnn" (componentVersions.${version}.cudnn or version) {
                  checked =
                    if refused != [ ] then
                      throw "Package cudnn is not available: capabilities ${toString refused} are not supported"
                    else
                      true;
                  meta.available = refused == [ ];
                }
              ) { inherit (self) backendStdenv; };
              nccl = lib.makeOverridable (
                { flags }:
                package "nccl" (componentVersions.${version}.nccl or version) {
                  makeFlags = [ "NVCC_GENCODE=${flags.gencodeString}" ];
                }
              ) { inherit (self) flags; };
              cudaMajorVersion = builtins.head (builtins.match "([0-9]+)[.].*" version);
            };
          self = base // extra self base;
        in
        self
        // {
          overrideScope =
            change:
            scope (
              final: prev:
              let
                first = extra final prev;
              in
              first // change final (prev // first)
            );
        };
    in
    scope (
      final: prev:
      builtins.foldl' (all: extension: all // extension final (prev // all)) { } pkgs._cuda.extensions
    );

  attributeOf = version: "cudaPackages_" + builtins.replaceStrings [ "." ] [ "_" ] version;
  cudaVersions = builtins.attrNames pin.cuda;

  torchFunction =
    pkgs: python: # formal parameters of nixpkgs' torch, and no others
    {
      cudaSupport ? config.cudaSupport or false,
      rocmSupport ? config.rocmSupport or false,
      cudaPackages ? pkgs.cudaPackages,
      rocmPackages ? { },
      gpuTargets ? [ ],
      magma ? pkgs.magma,
      magma-hip ? pkgs.magma,
      magma-cuda-static ? pkgs.magma-cuda-static,
      effectiveMagma ? if cudaSupport then magma-cuda-static else magma,
      useSystemNccl ? cudaSupport,
      MPISupport ? false,
      mpi ? null,
      buildDocs ? false,
      tritonSupport ? true,
      triton ? null,
      triton-cuda ? null,
      _tritonEffective ? null,
      mklDnnSupport ? true,
      blas ? pkgs.blas,
      vulkanSupport ? false,
      stdenv ? null,
    }:
    let
      setBool = value: if value then "1" else "0";
    in
    mkDerivation {
      pname = "torch";
      version = pin.torch;
      # buildPythonPackage sets the name itself
      name = "python${python}-torch-${pin.torch}";
      src = fetcher "source" [ ] { hash = lib.fakeHash; };
      patches = [ ./clang.patch ] ++ lib.optional cudaSupport ./fix-cmake-cuda-toolkit.patch;
      postPatch = ''
        substituteInPlace pyproject.toml --replace-fail "setuptools>=70.1.0,<80.0" "setuptools"
      ''
      + lib.optionalString cudaSupport "rm cmake/Modules/FindCUDAToolkit.cmake\n";
      postInstall = ''
        substituteInPlace $dev/share/cmake/Torch/TorchConfig.cmake --replace-fail /lib "$lib/lib"
      '';
      preConfigure = lib.optionalString cudaSupport ''
        export TORCH_CUDA_ARCH_LIST="${lib.concatStringsSep ";" gpuTargets}"
      '';
      preBuild = ''
        export MAX_JOBS=$NIX_BUILD_CORES
        python setup.py build --cmake-only
      '';
      dontUseCmakeConfigure = true;
      cmakeFlags = [ (lib.cmakeFeature "CUDAToolkit_VERSION" cudaPackages.cudaMajorMinorVersion) ];
      buildInputs = [
        blas
        blas.provider
      ]
      ++ lib.optionals cudaSupport [
        cudaPackages.cuda_cccl
        cudaPackages.cuda_cudart
        cudaPackages.cudnn
        cudaPackages.nccl
        effectiveMagma
      ];
      nativeBuildInputs = lib.optional cudaSupport cudaPackages.cuda_nvcc;
      USE_NNPACK = 1;
      USE_MKLDNN = setBool mklDnnSupport;
      USE_NCCL = setBool useSystemNccl;
      PYTORCH_BUILD_VERSION = pin.torch;
      env.NIX_CFLAGS_COMPILE = "-Wno-error";
      requiredSystemFeatures = [ "big-parallel" ];
      passthru = {
        inherit cudaSupport cudaPackages gpuTargets;
        rocmSupport = false;
        cudaCapabilities = if cudaSupport then cudaPackages.flags.cudaCapabilities else [ ];
        stdenv = { inherit mkDerivation; };
        cxxdev = package "torch-cxxdev" pin.torch { };
        blasProvider = blas.provider;
        pythonModule.pythonVersion = python;
        standin = {
          inherit pin config;
          magmaPatches = map (patch: patch.patchName or "") (effectiveMagma.patches or [ ]);
          magmaTargets = effectiveMagma.cudaCapabilities;
          ncclTargets = cudaPackages.nccl.makeFlags;
          kind = "torch";
        };
      };
      meta = {
        description = "PyTorch";
        changelog = "https://github.com/pytorch/pytorch/releases/tag/v${pin.torch}";
        license = lib.licenses.bsd3;
        platforms = lib.platforms.linux;
        broken =
          cudaSupport && builtins.elem (builtins.fromJSON cudaPackages.cudaMajorVersion) pin.broken_cuda;
      };
    };

  # What is built on torch: its formal parameters, and what it takes from torch.
  sibling =
    pkgs: python: pname:
    {
      torch,
      cudaPackages ? pkgs.cudaPackages,
      cudaSupport ? torch.cudaSupport,
    }:
    mkDerivation {
      inherit pname;
      version = pin.${pname};
      name = "python${python}-${pname}-${pin.${pname}}";
      src = fetcher "source" [ ] { hash = lib.fakeHash; };
      env.TORCH_CUDA_ARCH_LIST = lib.concatStringsSep ";" torch.cudaCapabilities;
      buildInputs = [ torch.cxxdev ];
      propagatedBuildInputs = [ torch ];
      passthru = {
        inherit torch;
        pythonModule.pythonVersion = python;
        standin = torch.standin // {
          kind = pname;
        };
      };
      meta = {
        description = pname;
        changelog = "https://github.com/pytorch/${pname}/releases/tag/v${pin.${pname}}";
        platforms = lib.platforms.linux;
      };
    };

  # A plain Python package: torch's dependencies, and what runs torchtailor.
  pythonPackage =
    python: pname:
    package "python${python}-${pname}" "1" { passthru.pythonModule.pythonVersion = python; };

  pythonSet =
    pkgs: python:
    lib.makeOverridable (
      {
        overrides ? (_: _: { }),
      }:
      lib.fix (
        self:
        let
          base =
            builtins.listToAttrs (
              map (name: {
                inherit name;
                value = pythonPackage python name;
              }) plainPackages
            )
            // {
              torch = lib.makeOverridable (torchFunction pkgs python) { };
              pytorch = self.torch;
              torchvision = lib.makeOverridable (sibling pkgs python "torchvision") { inherit (self) torch; };
              torchaudio = lib.makeOverridable (sibling pkgs python "torchaudio") { inherit (self) torch; };
              triton = package "triton" pin.triton { };
              pythonVersion = python;
              python = {
                pythonVersion = python;
                sitePackages = "lib/python${python}/site-packages";
                interpreter = "/bin/python${python}";
              };
              buildPythonPackage =
                attrs:
                mkDerivation (
                  attrs
                  // {
                    name = "python${python}-${attrs.name or "${attrs.pname}-${attrs.version}"}";
                    propagatedBuildInputs = attrs.dependencies or [ ];
                    passthru = {
                      pythonModule.pythonVersion = python;
                      standin = {
                        inherit pin config;
                        kind = "wheel";
                      };
                    }
                    // (attrs.passthru or { });
                  }
                );
              fetchPypi = pkgs.fetchPypi;
              overrideScope = change: pkgs."python${digits python}Packages".override { overrides = change; };
            };
          extended = builtins.foldl' (
            prev: extension: prev // extension self prev
          ) base pkgs.pythonPackagesExtensions;
        in
        extended // overrides self extended
      )
    ) { };

  plainPackages = [
    "archspec"
    "annotated-doc"
    "click"
    "filelock"
    "fsspec"
    "hatchling"
    "isal"
    "jinja2"
    "lz4"
    "markupsafe"
    "mpmath"
    "msgspec"
    "networkx"
    "numpy"
    "nvidia-ml-py"
    "packaging"
    "pillow"
    "pip"
    "platformdirs"
    "pydantic"
    "resolvelib"
    "rich"
    "setuptools"
    "shellingham"
    "sympy"
    "tree-sitter"
    "typer"
    "typing-extensions"
    "urllib3"
    "zstandard"
  ];

  base =
    pkgs:
    {
      inherit lib config pkgs;
      callPackage =
        f: args:
        let
          function = if builtins.isFunction f then f else load f;
        in
        lib.makeOverridable function (
          builtins.intersectAttrs (builtins.functionArgs function) pkgs // args
        );
      stdenv = {
        inherit mkDerivation;
        cc.cc.lib = package "gcc-lib" "14" { };
        hostPlatform = {
          system = platform;
          isLinux = lib.hasSuffix "-linux" platform;
          parsed.cpu.name = builtins.head (builtins.match "([^-]+)-.*" platform);
          isDarwin = lib.hasSuffix "-darwin" platform;
          isx86_64 = lib.hasPrefix "x86_64" platform;
          isAarch64 = lib.hasPrefix "aarch64" platform;
        };
      };
      fetchurl = fetcher "fetchurl" [ ];
      fetchpatch = args: fetcher "fetchpatch" [ "url" ] args // { patchName = args.name or ""; };
      fetchFromGitHub =
        {
          owner,
          repo,
          rev ? null,
          tag ? null,
          hash ? "",
          sha256 ? "",
          fetchSubmodules ? false,
          name ? "source",
        }:
        if rev == null && tag == null then
          throw "fetchFromGitHub wants a rev or a tag"
        else
          fetcher "source" [ ] { hash = if hash != "" then hash else sha256; };
      openblas = package "openblas" "0.3" { };
      mkl = package "mkl" "2024" { meta.license.free = false; };
      blas = lib.makeOverridable (
        { blasProvider }: package "blas" "3" { passthru.provider = blasProvider; }
      ) { blasProvider = pkgs.openblas; };
      lapack = lib.makeOverridable (
        { lapackProvider }: package "lapack" "3" { passthru.provider = lapackProvider; }
      ) { lapackProvider = pkgs.openblas; };
      magma = lib.makeOverridable (
        {
          cudaSupport ? config.cudaSupport or false,
          rocmSupport ? false,
          static ? false,
          cudaPackages ? pkgs.cudaPackages,
        }:
        package "magma" "2.9.0" {
          patches = [ ];
          inherit (cudaPackages.flags) cudaCapabilities cmakeCudaArchitecturesString;
          passthru = { inherit cudaPackages; };
        }
      ) { };
      magma-cuda = pkgs.magma.override {
        cudaSupport = true;
        rocmSupport = false;
      };
      magma-cuda-static = pkgs.magma-cuda.override { static = true; };
      addDriverRunpath = package "add-driver-runpath" "1" { };
      autoAddDriverRunpath = package "auto-add-driver-runpath-hook" "1" { };
      autoPatchelfHook = package "auto-patchelf-hook" "1" { };
      numactl = package "numactl" "2" { };
      rdma-core = package "rdma-core" "60" { };
      zlib = package "zlib" "1" { };
      runCommand =
        name: attrs: script:
        mkDerivation (attrs // { inherit name script; });
      fetchPypi = args: fetcher "fetchPypi" [ "pname" "version" ] args;
      _cuda = cudaConfig [ ];
      python3Packages = pkgs.python313Packages;
      pythonPackagesExtensions = [ ];
      mkShell = attrs: mkDerivation ({ name = "nix-shell"; } // attrs);
      uv = package "uv" "1" { };
      patchelf = package "patchelf" "1" { };
      cmake = package "cmake" "4" { };
      ninja = package "ninja" "1" { };
      nix-eval-jobs = package "nix-eval-jobs" "2" { };
    }
    // builtins.listToAttrs (
      map (version: {
        name = "python${digits version}";
        value = package "python" version {
          passthru = {
            pkgs = pkgs."python${digits version}Packages";
            withPackages =
              select: package "python-env" version { paths = select pkgs."python${digits version}Packages"; };
          };
        };
      }) pin.pythons
    )
    // builtins.listToAttrs (
      map (version: {
        name = "python${builtins.replaceStrings [ "." ] [ "" ] version}Packages";
        value = pythonSet pkgs version;
      }) pin.pythons
    )
    // builtins.listToAttrs (
      map (version: {
        name = attributeOf version;
        value = cudaSet pkgs version;
      }) cudaVersions
    )
    // builtins.mapAttrs (_: version: pkgs.${attributeOf version}) pin.aliases;
in
lib.fix (final: builtins.foldl' (prev: overlay: prev // overlay final prev) (base final) overlays)
