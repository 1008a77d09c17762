# The few functions of nixpkgs' lib that our expressions use, with the same meaning, for machines without nixpkgs.
let
  inherit (builtins)
    attrNames
    elem
    filter
    isAttrs
    isBool
    isFloat
    isInt
    isList
    isString
    listToAttrs
    match
    stringLength
    substring
    ;
  hasPrefix = prefix: text: substring 0 (stringLength prefix) text == prefix;
  hasSuffix =
    suffix: text:
    stringLength text >= stringLength suffix
    && substring (stringLength text - stringLength suffix) (stringLength suffix) text == suffix;
  type = description: check: { inherit description check; };
  mapAttrsToList = function: set: map (name: function name set.${name}) (attrNames set);
in
rec {
  inherit (builtins) concatLists concatStringsSep mapAttrs;
  inherit hasPrefix hasSuffix mapAttrsToList;

  filterAttrs =
    keep: set:
    listToAttrs (
      map (name: {
        inherit name;
        value = set.${name};
      }) (filter (name: keep name set.${name}) (attrNames set))
    );
  mapAttrs' = function: set: listToAttrs (mapAttrsToList function set);
  optional = condition: value: if condition then [ value ] else [ ];
  optionals = condition: values: if condition then values else [ ];
  optionalAttrs = condition: set: if condition then set else { };
  optionalString = condition: text: if condition then text else "";
  hasInfix = infix: text: builtins.length (builtins.split (escape infix) text) > 1;
  escape = text: builtins.replaceStrings [ "." "/" ] [ "\\." "/" ] text;
  removePrefix =
    prefix: text:
    if hasPrefix prefix text then substring (stringLength prefix) (stringLength text) text else text;
  removeSuffix =
    suffix: text:
    if hasSuffix suffix text then substring 0 (stringLength text - stringLength suffix) text else text;
  toInt = builtins.fromJSON;
  getExe' = package: name: "${package}/bin/${name}";
  getExe = package: getExe' package (package.meta.mainProgram or package.name);
  cleanSourceWith = { src, ... }: src;
  literalExpression = text: { inherit text; };
  licenses.asl20 = "Apache-2.0";

  mkIf = condition: content: {
    _type = "if";
    inherit condition content;
  };
  mkOption = option: option // { _type = "option"; };
  mkEnableOption =
    what:
    mkOption {
      type = types.bool;
      default = false;
      description = "Whether to enable ${what}.";
    };

  types = {
    bool = type "boolean" isBool;
    int = type "signed integer" isInt;
    float = type "floating point number" isFloat;
    str = type "string" isString;
    path = type "absolute path" (value: builtins.isPath value || isString value && hasPrefix "/" value);
    package = type "package" (value: isAttrs value && value ? outPath);
    enum = values: type "one of ${builtins.toJSON values}" (value: elem value values);
    strMatching = pattern: type "string matching ${pattern}" (value: isString value && match pattern value != null);
    nullOr = inner: type "null or ${inner.description}" (value: value == null || inner.check value);
    listOf = inner: type "list of ${inner.description}" (value: isList value && builtins.all inner.check value);
    either = one: other: type "${one.description} or ${other.description}" (value: one.check value || other.check value);
    addCheck = inner: check: type inner.description (value: inner.check value && check value);
    ints.between =
      low: high:
      type "integer between ${toString low} and ${toString high}" (value: isInt value && value >= low && value <= high);
  };
}
