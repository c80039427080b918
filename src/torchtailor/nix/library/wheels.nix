# PyTorch from its official wheels, cut to one GPU by torchtailor. The NVIDIA packages that torch's metadata asks for are
# in the same site-packages, where torch's own library paths look for them.
{
  nixpkgs,
  pythonPackages,
  torchtailor,
  pname, # the same for equal wheels, so that they are one derivation
  version,
  officialWheels, # as fetchPypi takes them, or { name, url, hash }
  gpu ? null, # a compute capability; null: nothing is cut
  nvidia ? false, # cut NVIDIA's libraries too: `torchtailor help licences`
  imports,
  meta,
}:

let
  inherit (nixpkgs) lib;
  inherit (pythonPackages) python;
  fetch =
    wheel:
    if wheel ? url then
      nixpkgs.fetchurl wheel
    else
      pythonPackages.fetchPypi (
        wheel
        // {
          format = "wheel";
          dist = wheel.python;
        }
      );
in
pythonPackages.buildPythonPackage {
  inherit pname version;
  format = "other";
  dontUnpack = true;
  dontStrip = true;

  officialWheels = map fetch officialWheels;

  nativeBuildInputs = [
    torchtailor
    pythonPackages.pip
    nixpkgs.autoPatchelfHook
    nixpkgs.autoAddDriverRunpath
  ];

  buildInputs = [
    nixpkgs.stdenv.cc.cc.lib
    nixpkgs.numactl
    nixpkgs.rdma-core
    nixpkgs.zlib
  ];

  dependencies = with pythonPackages; [
    filelock
    fsspec
    jinja2
    networkx
    numpy
    pillow
    setuptools
    sympy
    typing-extensions
  ];

  buildPhase = ''
    runHook preBuild
    export HOME=$PWD
    mkdir -p official
    for wheel in $officialWheels; do
      file=$(basename "$wheel")
      ln -s "$wheel" "official/''${file#*-}"
    done
  ''
  + (
    if gpu == null then
      ''
        mv official tailored
      ''
    else
      ''
        torchtailor tailor official/*.whl --gpu ${gpu} --jobs "''${NIX_BUILD_CORES:-0}" ${lib.optionalString nvidia "--nvidia"} --out tailored
      ''
  )
  + ''
    runHook postBuild
  '';

  installPhase = ''
    runHook preInstall
    ${python.interpreter} -m pip install --no-deps --no-index --no-cache-dir --disable-pip-version-check \
      --no-warn-script-location --prefix "$out" tailored/*.whl
    runHook postInstall
  '';

  # autoPatchelf sets new library paths: those of libraries that are opened by name at run time come from here.
  preFixup = ''
    site="$out/${python.sitePackages}"
    for folder in "$site"/torch/lib "$site"/nvidia/*/lib "$site"/nvidia/*/lib64 "$site"/triton/_C; do
      if [ -d "$folder" ]; then
        addAutoPatchelfSearchPath "$folder"
        appendRunpaths="''${appendRunpaths:-} $folder"
      fi
    done
  '';

  # Of the driver, and of networks that a machine may not have.
  autoPatchelfIgnoreMissingDeps = [
    "libcuda.so.1"
    "libnvidia-ml.so.1"
    "libfabric.so.1"
    "libmpi.so.40"
    "liboshmem.so.40"
    "libpmix.so.2"
    "libucp.so.0"
    "libucs.so.0"
  ];

  pythonImportsCheck = imports;
  doCheck = false;

  passthru = {
    inherit gpu nvidia;
    cudaSupport = gpu != null;
    cudaCapabilities = lib.optional (gpu != null) gpu;
  };

  meta = meta // {
    homepage = "https://pytorch.org/";
    changelog = "https://github.com/pytorch/pytorch/releases/tag/v${version}";
    license = [ lib.licenses.bsd3 ] ++ lib.optional (gpu != null) lib.licenses.unfreeRedistributable;
    sourceProvenance = [ lib.sourceTypes.binaryNativeCode ];
  };
}
