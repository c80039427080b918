# PyTorch NIGHTLY for NVIDIA DGX Spark (SM121) + ARMv9 with CUDA 13.0
{ python3Packages
, lib
, fetchFromGitHub
, cudaPackages_13
}:

let
  gpuArchSM = "sm_121";

  cpuFlags = [ "-march=armv9-a+sve+sve2" ];

in
python3Packages.buildPythonPackage rec {
  pname = "pytorch-python313-cuda13_0-sm121-armv9-nightly";
  version = "2.9.0";

  src = fetchFromGitHub {
    owner = "pytorch";
    repo = "pytorch";
    rev = "v2.9.0";
    hash = "";
    fetchSubmodules = true;
  };

  cudatoolkit = ../../result-cudatoolkit-13_0;

  preConfigure = ''
    export CXXFLAGS="$CXXFLAGS ${lib.concatStringsSep " " cpuFlags}"
    export CFLAGS="$CFLAGS ${lib.concatStringsSep " " cpuFlags}"
    export USE_MAGMA=0
  '';

  meta = {
    description = "PyTorch NIGHTLY for NVIDIA DGX Spark (SM121)";
    platforms = [ "aarch64-linux" ];
  };
}
