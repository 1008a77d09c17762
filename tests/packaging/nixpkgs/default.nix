# A package set with what our expressions name: every package is a derivation that nobody builds.
{ system ? "x86_64-linux", config ? { }, lib ? import ./lib.nix }:
let
  fake =
    name: more:
    derivation {
      inherit name system;
      builder = "/bin/sh";
    }
    // {
      meta.mainProgram = name;
    }
    // more;
  # The packages of nixpkgs that pyproject.toml may name. A name that is not here fails the evaluation.
  pythonPackages = builtins.listToAttrs (
    map
      (name: {
        inherit name;
        value = fake "python3-${name}" { };
      })
      [
        "aiohttp"
        "cryptography"
        "filelock"
        "jinja2"
        "llguidance"
        "ml-dtypes"
        "msgspec"
        "numpy"
        "nvidia-ml-py"
        "prometheus-client"
        "psutil"
        "pydantic"
        "requests"
        "rich"
        "safetensors"
        "setuptools"
        "structlog"
        "supervisor"
        "tokenizers"
        "torch"
        "torch-bin"
        "triton-bin"
      ]
  );
in
{
  inherit lib;
  stdenv = {
    hostPlatform.system = system;
    cc = fake "cc" { cc.lib = fake "cc-lib" { }; };
  };
  glibc.bin = fake "glibc-bin" { };
  zlib = fake "zlib" { };
  uv = fake "uv" { };
  shellcheck = fake "shellcheck" { };
  curl = fake "curl" { };
  nixfmt-rfc-style = fake "nixfmt" { };
  cudaPackages.cuda_nvcc = fake "cuda_nvcc" { };
  python3 = fake "python3" {
    sitePackages = "lib/python3.13/site-packages";
    pkgs = pythonPackages // {
      buildPythonApplication =
        arguments:
        fake arguments.pname (arguments.passthru // { inherit arguments; meta = arguments.meta; });
    };
  };
  writeShellApplication = { name, text }: fake name { inherit text; };
  writeText = name: text: fake name { inherit text; };
  mkShell = arguments: fake "shell" { inherit arguments; };
  testers.runNixOSTest =
    test:
    fake test.name {
      # Both are used, so that the evaluation reaches into the test.
      script = builtins.stringLength test.testScript;
      nodes = builtins.attrNames test.nodes;
    };
}
