# The appliance as a Python application. `cuda` takes torch's published CUDA wheels; without it the CPU build of nixpkgs
# is used. Dependencies are those of pyproject.toml, by name: nixpkgs decides the versions.
{
  pkgs,
  cuda ? true,
}:
let
  inherit (pkgs) lib;
  python = pkgs.python3;
  project = builtins.fromTOML (builtins.readFile ../pyproject.toml);
  nameOf = requirement: builtins.head (builtins.match "([A-Za-z0-9._-]+).*" requirement);
  dependencies = map (requirement: python.pkgs.${nameOf requirement}) project.project.dependencies;
  torch = if cuda then [ python.pkgs.torch-bin python.pkgs.triton-bin ] else [ python.pkgs.torch ];
  driver = import ./driver.nix { inherit pkgs; };
  variables = lib.optionalAttrs cuda driver.environment;
in
python.pkgs.buildPythonApplication {
  pname = "ninfer-appliance";
  version = lib.removeSuffix "\n" (builtins.readFile ../VERSION);
  pyproject = true;
  src = lib.cleanSourceWith {
    name = "ninfer-appliance-source";
    src = ../.;
    filter =
      path: _type:
      let
        relative = lib.removePrefix (toString ../. + "/") (toString path);
        top = builtins.head (builtins.filter builtins.isString (builtins.split "/" relative));
      in
      builtins.elem top [
        "appliance"
        "downloader"
        "engine"
        "kernels"
        "etc"
        "pyproject.toml"
        "VERSION"
        "LICENSE"
        "README.md"
      ];
  };
  build-system = [ python.pkgs.setuptools ];
  dependencies = dependencies ++ torch;
  pythonRelaxDeps = true;
  # The programs look for etc/ beside their packages.
  postInstall = ''
    cp -r etc $out/${python.sitePackages}/etc
  '';
  makeWrapperArgs = lib.concatLists (
    lib.mapAttrsToList (
      name: value:
      if name == "LD_LIBRARY_PATH" then
        [ "--prefix" name ":" value ]
      else
        [ "--set-default" name value ]
    ) variables
  );
  pythonImportsCheck = [
    "appliance.cli"
    "downloader.cli"
    "engine.api"
    "engine.options"
  ];
  passthru = { inherit cuda python; };
  meta = {
    description = project.project.description;
    license = lib.licenses.asl20;
    mainProgram = "ninfer-appliance";
    platforms = [ "x86_64-linux" ];
  };
}
