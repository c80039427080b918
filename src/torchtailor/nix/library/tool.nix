# torchtailor as a Python application, from its wheel or from its repository.
{
  nixpkgs,
  pythonPackages ? nixpkgs.python313Packages,
  src,
  version,
  fromSource ? false,
}:

let
  inherit (nixpkgs) lib stdenv;

  # Packages that nixpkgs lacks, or has in a version that is too old.
  wheel =
    {
      pname,
      version,
      hash,
      python ? "py3",
      abi ? "none",
      platform ? "any",
      ...
    }@args:
    pythonPackages.buildPythonPackage (
      {
        inherit pname version;
        format = "wheel";
        src = pythonPackages.fetchPypi {
          pname = builtins.replaceStrings [ "-" ] [ "_" ] pname;
          inherit
            version
            python
            abi
            platform
            hash
            ;
          format = "wheel";
          dist = python;
        };
      }
      // removeAttrs args [
        "pname"
        "version"
        "hash"
        "python"
        "abi"
        "platform"
      ]
    );

  newEnough =
    name: least: other:
    if lib.versionAtLeast (pythonPackages.${name}.version or "0") least then
      pythonPackages.${name}
    else
      other;

  annotated-doc = newEnough "annotated-doc" "0.0.2" (wheel {
    pname = "annotated-doc";
    version = "0.0.6";
    hash = "sha256-NhyglQzHCC9T+mnpMoQJ9Apixh5X4KR+GCWggHililM=";
  });

  typer = newEnough "typer" "0.29" (wheel {
    pname = "typer";
    version = "0.29.0";
    hash = "sha256-s8PebgaoSCdNx71WpDNJnpzyX6HUCqO6Tsz+xOFiTHs=";
    dependencies = with pythonPackages; [
      annotated-doc
      pydantic
      rich
      shellingham
    ];
  });

  tree-sitter-nix = newEnough "tree-sitter-nix" "0.1" (
    wheel (
      {
        pname = "tree-sitter-nix";
        version = "0.1.0";
        python = "cp310";
        abi = "abi3";
        nativeBuildInputs = [ nixpkgs.autoPatchelfHook ];
      }
      // {
        x86_64-linux = {
          platform = "manylinux_2_5_x86_64.manylinux1_x86_64.manylinux_2_17_x86_64.manylinux2014_x86_64";
          hash = "sha256-WMB/eIvG0kt6kK/0lDHeV8OTPFxU0QCBJdogc/G8Rd4=";
        };
        aarch64-linux = {
          platform = "manylinux_2_17_aarch64.manylinux2014_aarch64";
          hash = "sha256-Jd9wBdkYiWg0fZf1mAtf14AADzQM4eXbGYRHvyCMiHE=";
        };
      }
      .${stdenv.hostPlatform.system}
    )
  );
in
pythonPackages.buildPythonPackage (
  {
    pname = "torchtailor";
    inherit version src;
    dependencies =
      with pythonPackages;
      [
        archspec
        isal
        jinja2
        lz4
        msgspec
        nvidia-ml-py
        packaging
        platformdirs
        resolvelib
        rich
        tree-sitter
        urllib3
        zstandard
      ]
      ++ [
        tree-sitter-nix
        typer
      ];
    pythonImportsCheck = [ "torchtailor" ];
    doCheck = false;
    meta = {
      description = "Makes PyTorch fit one machine";
      license = lib.licenses.mit;
      mainProgram = "torchtailor";
      platforms = [
        "x86_64-linux"
        "aarch64-linux"
      ];
    };
  }
  // (
    if fromSource then
      {
        pyproject = true;
        build-system = [ pythonPackages.hatchling ];
      }
    else
      { format = "wheel"; }
  )
)
