# An overlay whose torch is compiled for one GPU and one CPU, in every Python set, and with it every CUDA package, so that
# all that is built on them is. What the arguments leave out comes from config.torchtailor, and the GPU from
# config.cudaCapabilities.
{
  tool ? null, # torchtailor itself, as a function of a package set
}:
{
  gpu ? null, # a compute capability: "9.0"
  cpu ? null, # an instruction set: "avx512", "armv9"
  gigabytesPerJob ? null, # limit the compilers by the builder's memory
}:
final: prev:

let
  written = prev.config.torchtailor or { };
  given =
    if builtins.isAttrs written then
      written
    else
      throw "torchtailor: config.torchtailor must be a set such as { gpu = \"9.0\"; }, and not a ${builtins.typeOf written}";
  unknown = builtins.attrNames (
    removeAttrs given [
      "gpu"
      "cpu"
      "gigabytesPerJob"
    ]
  );
  settings =
    if unknown == [ ] then
      given
    else
      throw "torchtailor: config.torchtailor has no ${builtins.head unknown}; it has gpu, cpu and gigabytesPerJob";
  capabilities = prev.config.cudaCapabilities or [ ];
  first = values: builtins.head (builtins.filter (value: value != null) values ++ [ null ]);
  tailored = import ./tailor.nix {
    nixpkgs = final;
    gpu = first [
      gpu
      (settings.gpu or null)
      (if builtins.length capabilities == 1 then builtins.head capabilities else null)
    ];
    cpu = first [
      cpu
      (settings.cpu or null)
    ];
    gigabytesPerJob = first [
      gigabytesPerJob
      (settings.gigabytesPerJob or null)
    ];
    inherit (final) cudaPackages;
    magma = final.magma-cuda-static;
  };
in
(if tool == null then { } else { torchtailor = tool final; })
// {
  # Applied by nixpkgs to each of its CUDA package sets.
  _cuda = prev._cuda.extend (
    _: previous: { extensions = previous.extensions ++ [ tailored.extension ]; }
  );
  magma = tailored.fixMagma prev.magma;
  pythonPackagesExtensions = (prev.pythonPackagesExtensions or [ ]) ++ [
    (pfinal: pprev: {
      torch = if tailored.changes then tailored.torch pprev.torch { } else pprev.torch;
    })
  ];
}
