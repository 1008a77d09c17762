{
  description = "NInfer appliance: a box that boots headless and serves Qwen models from one 24 GB NVIDIA card";

  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-unstable";

  outputs =
    { self, nixpkgs }:
    let
      system = "x86_64-linux";
      # CUDA is unfree.
      pkgs = import nixpkgs {
        inherit system;
        config.allowUnfree = true;
      };
      inherit (pkgs) lib;
      ninfer = import ./nix/package.nix { inherit pkgs; };
      ninfer-cpu = import ./nix/package.nix {
        inherit pkgs;
        cuda = false;
      };

      # Flake name → catalog name.
      models = {
        download-qwen38-27b = "qwen38-27b";
        download-qwen36-27b = "qwen36-27b";
        download-qwen36-35b = "qwen36-35b-a3b";
        download-qwen36-35b-v2 = "qwen36-35b-v2";
      };
      downloader =
        name: model:
        pkgs.writeShellApplication {
          inherit name;
          text = ''
            export NINFER_MODEL_DIR="''${NINFER_MODEL_DIR:-$HOME/models}"
            exec ${lib.getExe' ninfer-cpu "download-model"} ${model} "$@"
          '';
        };
      # `nix run .#serve -- MODEL [flags]` is ninfer-serve; without arguments the whole box starts.
      serve = pkgs.writeShellApplication {
        name = "ninfer-serve";
        text = ''
          if [ $# -eq 0 ]; then exec ${lib.getExe' ninfer "ninfer-appliance"} up; fi
          exec ${lib.getExe' ninfer "ninfer-serve"} "$@"
        '';
      };
      driver = import ./nix/driver.nix { inherit pkgs; };
      app = description: program: {
        type = "app";
        inherit program;
        meta = { inherit description; };
      };
    in
    {
      packages.${system} =
        {
          default = ninfer;
          inherit ninfer ninfer-cpu;
        }
        // lib.mapAttrs downloader models;

      apps.${system} =
        let
          server = app "Start the box, or ninfer-serve MODEL [flags]" (lib.getExe serve);
        in
        {
          default = server;
          serve = server;
          cli = app "Ask one question" (lib.getExe' ninfer "ninfer");
        }
        // lib.mapAttrs (
          name: model: app "Fetch and verify ${model}" (lib.getExe self.packages.${system}.${name})
        ) models;

      devShells.${system}.default = pkgs.mkShell {
        packages = [
          pkgs.python3
          pkgs.uv
          pkgs.shellcheck
          pkgs.cudaPackages.cuda_nvcc
          pkgs.stdenv.cc
        ];
        env = driver.environment // {
          # Wheels made for manylinux look for these.
          LD_LIBRARY_PATH = lib.concatStringsSep ":" [
            driver.libraries
            "${pkgs.stdenv.cc.cc.lib}/lib"
            "${pkgs.zlib}/lib"
          ];
        };
        shellHook = ''
          echo 'ninfer: ./test.sh runs the checks; python -m tools.generate renews what comes from the option table'
        '';
      };

      checks.${system} = {
        package = ninfer-cpu;
        appliance = import ./nix/tests/appliance.nix { inherit self pkgs; };
      };

      nixosModules = {
        default = import ./nix/module.nix self;
        ninfer = self.nixosModules.default;
      };

      formatter.${system} = pkgs.nixfmt-rfc-style;
    };
}
