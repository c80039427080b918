# An overlay whose torch is compiled for one GPU and one CPU, in every Python set, so that all that is built on torch
# uses it. What the arguments leave out comes from config.torchtailor, and the GPU from config.cudaCapabilities.
{ isas, tool }:
{
  gpu ? null, # a compute capability: "9.0"
  cpu ? null, # an instruction set: "avx512", "armv9"
}:
final: prev:

let
  inherit (prev) lib;
  settings = prev.config.torchtailor or { };
  capabilities = prev.config.cudaCapabilities or [ ];
  given = lib.findFirst (value: value != null) null [
    gpu
    (settings.gpu or null)
    (if builtins.length capabilities == 1 then builtins.head capabilities else null)
  ];
  target =
    if given == null || builtins.match "[0-9]{1,2}[.][0-9][af]?" given != null then
      given
    else
      throw "torchtailor: gpu must be a compute capability such as 9.0, not ${given}";
  name = if cpu != null then cpu else settings.cpu or null;
  known = builtins.listToAttrs (
    map (isa: {
      inherit (isa) name;
      value = isa;
    }) isas
  );
  isa =
    if name == null then
      null
    else
      known.${name}
        or (throw "torchtailor: there is no instruction set ${name}: ${toString (builtins.attrNames known)}");
  flags =
    if isa == null then
      [ ]
    else if isa.arch != prev.stdenv.hostPlatform.parsed.cpu.name then
      throw "torchtailor: ${name} is ${isa.arch}, and this is ${prev.stdenv.hostPlatform.system}"
    else
      isa.compile_flags;

  tailored =
    torch:
    (
      if target == null then
        torch
      else
        torch.override {
          cudaSupport = true;
          gpuTargets = [ target ];
        }
    ).overrideAttrs
      (oldAttrs: {
        preConfigure =
          (oldAttrs.preConfigure or "")
          + lib.optionalString (flags != [ ]) ''
            export CFLAGS="${toString flags} ''${CFLAGS:-}"
            export CXXFLAGS="${toString flags} ''${CXXFLAGS:-}"
          '';
        # nixpkgs sets MAX_JOBS from NIX_BUILD_CORES: limit it to one compiler per 4 GB of memory.
        preBuild = ''
          room=$(awk '/^MemAvailable:/ { print int($2 / 1024 / 1024 / 4) }' /proc/meminfo)
          if [ "''${room:-0}" -lt 1 ]; then room=1; fi
          if [ "$room" -lt "$NIX_BUILD_CORES" ]; then export NIX_BUILD_CORES=$room; fi
        ''
        + (oldAttrs.preBuild or "");
        passthru = (oldAttrs.passthru or { }) // {
          gpuArch = target;
          cpuISA = name;
        }
        // lib.optionalAttrs (target != null) { cudaCapabilities = [ target ]; };
      });
in
{
  torchtailor = tool final;
  pythonPackagesExtensions = (prev.pythonPackagesExtensions or [ ]) ++ [
    (pfinal: pprev: {
      torch = if target == null && flags == [ ] then pprev.torch else tailored pprev.torch;
    })
  ];
}
