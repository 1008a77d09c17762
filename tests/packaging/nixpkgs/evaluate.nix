# The NixOS module's result for a configuration, as plain data. With a path of nixpkgs' own lib its module system is used.
{
  given,
  package ? "/nix/store/fake-ninfer",
  cuda ? true,
  videoDrivers ? [ "nvidia" ],
  libPath ? null,
}:
let
  lib = if libPath == null then import ./lib.nix else import libPath;
  pkgs = import ./. { inherit lib; };
  self.packages.x86_64-linux.ninfer = {
    type = "derivation";
    name = "ninfer";
    outPath = package;
    drvPath = "${package}.drv";
    inherit cuda;
  };
  module = import ../../../nix/module.nix self;

  # Values of options: what was given, checked, or the default.
  values =
    where: options: given:
    if options._type or null == "option" then
      let
        value = if given == null && options ? default then options.default else given;
      in
      if options.type.check value then
        value
      else
        throw "${where} is ${builtins.toJSON value}, not a ${options.type.description}"
    else
      let
        unknown = builtins.filter (name: !(options ? ${name})) (builtins.attrNames (if given == null then { } else given));
      in
      if unknown != [ ] then
        throw "${where}.${builtins.head unknown} does not exist"
      else
        builtins.mapAttrs (
          name: option: values "${where}.${name}" option (if given == null then null else given.${name} or null)
        ) options;

  resolve =
    value:
    if builtins.isAttrs value && value._type or null == "if" then
      if value.condition then resolve value.content else null
    else if builtins.isAttrs value && !(value ? outPath) then
      lib.filterAttrs (_: item: item != null) (builtins.mapAttrs (_: resolve) value)
    else
      value;

  small =
    let
      result = module {
        inherit lib pkgs;
        config.services = {
          ninfer = values "services.ninfer" result.options.services.ninfer given;
          xserver = { inherit videoDrivers; };
        };
      };
    in
    resolve result.config;

  real =
    let
      anything = lib.mkOption {
        type = lib.types.attrsOf lib.types.anything;
        default = { };
      };
      around = {
        options = {
          assertions = lib.mkOption {
            type = lib.types.listOf lib.types.anything;
            default = [ ];
          };
          users = {
            users = anything;
            groups = anything;
          };
          environment.systemPackages = lib.mkOption { type = lib.types.listOf lib.types.package; };
          networking.firewall.allowedTCPPorts = lib.mkOption {
            type = lib.types.listOf lib.types.port;
            default = [ ];
          };
          services.xserver.videoDrivers = lib.mkOption { type = lib.types.listOf lib.types.str; };
          systemd.services = lib.mkOption {
            type = lib.types.attrsOf (lib.types.submodule { freeformType = lib.types.attrsOf lib.types.anything; });
          };
        };
        config = {
          services.xserver = { inherit videoDrivers; };
          services.ninfer = given;
          _module.args = { inherit pkgs; };
        };
      };
    in
    (lib.evalModules { modules = [ module around ]; }).config;

  config = if libPath == null then small else real;
in
{
  failed = map (item: item.message) (builtins.filter (item: !item.assertion) (config.assertions or [ ]));
  ports = config.networking.firewall.allowedTCPPorts or [ ];
  units = builtins.mapAttrs (_: unit: builtins.removeAttrs unit [ "path" ]) (config.systemd.services or { });
  path = map (item: "${item}") (config.systemd.services.ninfer.path or [ ]);
}
