# A recipe whose source has a placeholder for its hash, as a new pin has.
{ pkgs ? { } }:

let
  src = derivation {
    name = "source";
    rev = "v9.9.9";
    system = builtins.currentSystem;
    builder = "/bin/sh";
    args = [ "-c" "echo the source > $out" ];
    outputHashMode = "flat";
    outputHashAlgo = "sha256";
    outputHash = "";
  };
in
derivation {
  name = "pytorch-tiny";
  system = builtins.currentSystem;
  builder = "/bin/sh";
  args = [ "-c" "read line < $src; echo $line > $out" ];
  inherit src;
}
// {
  inherit src;
}
