# NixOS module `services.ninfer`. Its settings are made from nix/options.json, which tools/generate.py makes from the
# option table of the program.
self:
{
  config,
  lib,
  pkgs,
  ...
}:
let
  cfg = config.services.ninfer;
  table = (builtins.fromJSON (builtins.readFile ./options.json)).settings;
  driver = import ./driver.nix { inherit pkgs; };
  home = "/var/lib/ninfer";

  # Secrets come from a file, because everything in the store can be read by everybody.
  offered = lib.filterAttrs (_: row: !row.secret) table;

  typeOf =
    row:
    let
      integer =
        if row.maximum == null then
          lib.types.addCheck lib.types.int (value: value >= row.minimum)
        else
          lib.types.ints.between row.minimum row.maximum;
      multiple =
        if row.multiple == 1 then
          integer
        else
          lib.types.addCheck integer (value: value / row.multiple * row.multiple == value);
      number = lib.types.addCheck (lib.types.either lib.types.int lib.types.float) (
        value: value >= row.minimum && value <= row.maximum
      );
      words = lib.types.enum row.choices;
    in
    {
      integer = if row.choices == [ ] then multiple else lib.types.either words multiple;
      inherit number;
      choice = words;
      switch = lib.types.bool;
      text = lib.types.addCheck lib.types.str (value: value != "");
      path = lib.types.either lib.types.path lib.types.str;
    }
    .${row.kind};

  settingOption =
    _: row:
    lib.mkOption {
      type = lib.types.nullOr (typeOf row);
      default = null;
      description = ''
        ${row.description}. `null` leaves the program's default${
          if row.default == null then "" else ", which is `${row.default}`"
        }.
      '';
    };

  text =
    value:
    if builtins.isBool value then
      (if value then "on" else "off")
    else if builtins.isFloat value then
      builtins.toJSON value
    else
      toString value;

  isSet = name: cfg.settings.${name} != null;
  chosen = name: if isSet name then cfg.settings.${name} else table.${name}.default;

  settingsEnvironment = lib.mapAttrs' (name: row: {
    name = row.environment;
    value = text cfg.settings.${name};
  }) (lib.filterAttrs (name: _: isSet name) offered);

  port = if isSet "port" then cfg.settings.port else lib.toInt table.port.default;
  isPath = lib.hasInfix "/" (chosen "model") || lib.hasSuffix ".ninfer" (chosen "model");
  onCpu = chosen "device" == "cpu";
  folder = if isSet "model-dir" then toString cfg.settings.model-dir else "${home}/models";
  loopback = builtins.elem (chosen "host") [ "127.0.0.1" "::1" "localhost" ];

  environment =
    {
      HOME = home;
      NINFER_HOME = home;
      XDG_CACHE_HOME = "/var/cache/ninfer";
      TRITON_CACHE_DIR = "/var/cache/ninfer/triton";
      PYTHONDONTWRITEBYTECODE = "1";
    }
    // lib.optionalAttrs (!onCpu) driver.environment
    // settingsEnvironment;

  # The same as in etc/systemd/ninfer.service, which also says what is left off and why; a test compares them.
  hardening = {
    NoNewPrivileges = true;
    CapabilityBoundingSet = "";
    AmbientCapabilities = "";
    ProtectSystem = "strict";
    ProtectHome = true;
    PrivateTmp = true;
    PrivateMounts = true;
    ProtectHostname = true;
    ProtectControlGroups = true;
    ProtectKernelLogs = true;
    ProtectKernelModules = true;
    ProtectKernelTunables = true;
    LockPersonality = true;
    RemoveIPC = true;
    RestrictNamespaces = true;
    RestrictRealtime = true;
    RestrictSUIDSGID = true;
    RestrictAddressFamilies = [
      "AF_UNIX"
      "AF_INET"
      "AF_INET6"
      "AF_NETLINK"
    ];
    SystemCallArchitectures = "native";
    SystemCallFilter = [
      "@system-service"
      "~@privileged @obsolete"
      "@chown"
    ];
    SystemCallErrorNumber = "EPERM";
    KeyringMode = "private";
    UMask = "0027";
  };

  # The downloader sees no device and writes no code.
  fetchHardening = hardening // {
    MemoryDenyWriteExecute = true;
    PrivateDevices = true;
    PrivateUsers = true;
    ProcSubset = "pid";
    ProtectClock = true;
    ProtectProc = "invisible";
    RestrictAddressFamilies = [
      "AF_UNIX"
      "AF_INET"
      "AF_INET6"
    ];
    SystemCallFilter = [
      "@system-service"
      "~@privileged @resources"
    ];
  };
in
{
  options.services.ninfer = {
    enable = lib.mkEnableOption "the NInfer appliance, a language model behind the OpenAI and Anthropic APIs";

    package = lib.mkOption {
      type = lib.types.package;
      default = self.packages.${pkgs.stdenv.hostPlatform.system}.ninfer;
      defaultText = lib.literalExpression "ninfer.packages.\${system}.ninfer";
      description = "The appliance. `ninfer-cpu` is the one for machines without an NVIDIA card.";
    };

    settings = lib.mapAttrs settingOption offered;

    environmentFile = lib.mkOption {
      type = lib.types.nullOr lib.types.path;
      default = null;
      example = "/run/secrets/ninfer.env";
      description = "File with `NINFER_API_KEY=...`, and other settings that must not be in the store.";
    };

    openFirewall = lib.mkOption {
      type = lib.types.bool;
      default = false;
      description = "Open the port in the firewall. It also needs `settings.host`, because the default is this machine.";
    };

    fetch = {
      enable = lib.mkOption {
        type = lib.types.bool;
        default = true;
        description = "Fetch models in a unit of its own before the box starts, and keep trying when the network is down.";
      };
      models = lib.mkOption {
        type = lib.types.listOf (lib.types.strMatching "[A-Za-z0-9._-]+");
        default = lib.optional (!isPath) (chosen "model");
        defaultText = lib.literalExpression "[ config.services.ninfer.settings.model ]";
        example = [ "qwen38-27b" "qwen36-35b-a3b" ];
        description = "Names of the catalog.";
      };
    };
  };

  config = lib.mkIf cfg.enable {
    assertions = [
      {
        assertion = !(cfg.openFirewall && loopback);
        message = "services.ninfer.openFirewall has no effect while settings.host is ${chosen "host"}; set it to \"0.0.0.0\" or \"::\".";
      }
      {
        assertion = onCpu || cfg.package.cuda or true;
        message = "services.ninfer.package is built without CUDA; set services.ninfer.settings.device = \"cpu\", or use the package `ninfer`.";
      }
      {
        assertion = onCpu || builtins.elem "nvidia" config.services.xserver.videoDrivers;
        message = "services.ninfer needs the NVIDIA driver: add services.xserver.videoDrivers = [ \"nvidia\" ], or set services.ninfer.settings.device = \"cpu\".";
      }
      {
        assertion = !(isSet "max-context" && isSet "kv-capacity" && builtins.isInt cfg.settings.kv-capacity)
          || cfg.settings.kv-capacity >= cfg.settings.max-context;
        message = "services.ninfer.settings.kv-capacity is smaller than max-context; no request of full length would fit.";
      }
      {
        assertion = !(isSet "greedy" && cfg.settings.greedy && isSet "temperature" && cfg.settings.temperature != 0);
        message = "services.ninfer.settings.greedy and temperature contradict each other.";
      }
      {
        assertion = !(isSet "no-thinking" && cfg.settings.no-thinking && isSet "reasoning-effort");
        message = "services.ninfer.settings.no-thinking and reasoning-effort contradict each other.";
      }
    ];

    users.users.ninfer = {
      isSystemUser = true;
      group = "ninfer";
      inherit home;
      description = "NInfer appliance";
    };
    users.groups.ninfer = { };

    environment.systemPackages = [ cfg.package ];
    networking.firewall.allowedTCPPorts = lib.mkIf cfg.openFirewall [ port ];

    systemd.services.ninfer = {
      description = "NInfer appliance: a language model behind the OpenAI and Anthropic APIs";
      wantedBy = [ "multi-user.target" ];
      wants = [ "network-online.target" ] ++ lib.optional cfg.fetch.enable "ninfer-fetch.service";
      after =
        [
          "network-online.target"
          "nvidia-persistenced.service"
        ]
        ++ lib.optional cfg.fetch.enable "ninfer-fetch.service";
      # A driver that is still loading and a network that is down go away by themselves: try for ever, slowly.
      unitConfig.StartLimitIntervalSec = 0;
      # Triton starts these by name.
      path = lib.optionals (!onCpu) [
        pkgs.stdenv.cc
        pkgs.glibc.bin
      ];
      inherit environment;
      serviceConfig = hardening // {
        Type = "notify";
        NotifyAccess = "main";
        ExecStart = "${lib.getExe' cfg.package "ninfer-appliance"} up";
        EnvironmentFile = lib.optional (cfg.environmentFile != null) cfg.environmentFile;
        TimeoutStartSec = "10min";
        TimeoutStopSec = "60s";
        Restart = "on-failure";
        RestartSec = "15s";
        RestartSteps = 6;
        RestartMaxDelaySec = "10min";
        RestartPreventExitStatus = 2;
        KillMode = "mixed";
        OOMPolicy = "stop";
        User = "ninfer";
        Group = "ninfer";
        StateDirectory = [
          "ninfer"
          "ninfer/models"
          "ninfer/cache"
          "ninfer/state"
        ];
        CacheDirectory = "ninfer";
        RuntimeDirectory = "ninfer";
        BindPaths = [ "/var/cache/ninfer:${home}/cache" ];
        ReadWritePaths = lib.optional (isSet "model-dir") folder;
        LimitMEMLOCK = "infinity";
        LimitNOFILE = 65536;
      };
    };

    systemd.services.ninfer-fetch = lib.mkIf (cfg.fetch.enable && cfg.fetch.models != [ ]) {
      description = "Fetch models for NInfer: ${lib.concatStringsSep ", " cfg.fetch.models}";
      wants = [ "network-online.target" ];
      after = [ "network-online.target" ];
      unitConfig.StartLimitIntervalSec = 0;
      environment = {
        HOME = home;
        PYTHONDONTWRITEBYTECODE = "1";
      }
      // lib.filterAttrs (name: _: builtins.elem name [
        "NINFER_CATALOG_KEYS"
        "NINFER_CATALOG_POLICY"
        "NINFER_OFFLINE"
        "NINFER_SOURCES"
      ]) settingsEnvironment;
      serviceConfig = fetchHardening // {
        Type = "oneshot";
        RemainAfterExit = true;
        ExecStart = map (
          name:
          "${lib.getExe' cfg.package "download-model"} ${name} --dir ${folder}"
          + lib.optionalString (isSet "catalog") " --catalog ${toString cfg.settings.catalog}"
        ) cfg.fetch.models;
        EnvironmentFile = lib.optional (cfg.environmentFile != null) cfg.environmentFile;
        # Patient: half a minute at first, half an hour in the end, for ever. A name that the catalog lacks ends it.
        Restart = "on-failure";
        RestartSec = "30s";
        RestartSteps = 10;
        RestartMaxDelaySec = "30min";
        RestartPreventExitStatus = 2;
        User = "ninfer";
        Group = "ninfer";
        StateDirectory = [
          "ninfer"
          "ninfer/models"
        ];
        ReadWritePaths = lib.optional (isSet "model-dir") folder;
        IOSchedulingClass = "idle";
        Nice = 10;
      };
    };
  };
}
