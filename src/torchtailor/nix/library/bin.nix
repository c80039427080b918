# nixpkgs' torch-bin, cut to one GPU by torchtailor.
{
  torchtailor,
  torch, # python3Packages.torch-bin
  gpu, # "9.0"
  nvidia ? false, # also copy NVIDIA's libraries into it and cut them: `torchtailor help licences`
}:

let
  libraries = map (package: package.lib or package.out or package) (torch.buildInputs or [ ]);
  inherit (torch.pythonModule) sitePackages;
  cut = "torchtailor tailor --gpu ${gpu} --jobs \"\${NIX_BUILD_CORES:-0}\"";
in
torch.overrideAttrs (
  oldAttrs:
  {
    nativeBuildInputs = (oldAttrs.nativeBuildInputs or [ ]) ++ [ torchtailor ];
    preInstall = (oldAttrs.preInstall or "") + ''
      export HOME=$PWD
      mv dist official
      ${cut} official/*.whl --out dist
    '';
    passthru = (oldAttrs.passthru or { }) // {
      inherit gpu nvidia;
    };
  }
  // (
    if !nvidia then
      { }
    else
      {
        # Not among the inputs, so that no library path leads to the whole ones.
        buildInputs = [ ];
        nvidiaLibraries = libraries;
        extraRunpaths = [ "${placeholder "out"}/${sitePackages}/torch/lib/nvidia" ];
        postInstall = (oldAttrs.postInstall or "") + ''
          whole=$PWD/nvidia-libraries
          mkdir -p "$whole"
          for library in $(find -L $nvidiaLibraries -maxdepth 2 -path '*/lib/*.so*' -type f); do
            if [ ! -e "$whole/''${library##*/}" ]; then cp -L "$library" "$whole"; fi
          done
          chmod -R u+w "$whole"
          ${cut} "$whole" --nvidia --out "$out/${sitePackages}/torch/lib/nvidia"
          addAutoPatchelfSearchPath "$out/${sitePackages}/torch/lib/nvidia"
        '';
      }
  )
)
