# A machine without a card: the box must boot with the embedded model on the CPU, answer, and come back after a kill;
# with a card described to it, the plan must be made for that card. It must never serve without the card it needs.
{ self, pkgs }:
let
  card = pkgs.writeText "machine.json" (
    builtins.toJSON {
      cards = [
        {
          index = 0;
          name = "NVIDIA GeForce RTX 3090";
          total_bytes = "24576 MiB";
          free_bytes = "24100 MiB";
          compute_capability = [
            8
            6
          ];
        }
      ];
      driver = "580.95.05";
      host_total_bytes = "64 GiB";
      host_available_bytes = "60 GiB";
      disk_free_bytes = "200 GiB";
    }
  );
in
pkgs.testers.runNixOSTest {
  name = "ninfer-appliance";
  nodes.machine = {
    imports = [ self.nixosModules.default ];
    virtualisation.memorySize = 4096;
    services.ninfer = {
      enable = true;
      package = self.packages.${pkgs.stdenv.hostPlatform.system}.ninfer-cpu;
      settings = {
        model = "nano";
        device = "cpu";
      };
    };
    environment.systemPackages = [ pkgs.curl ];
  };
  testScript = ''
    import json

    question = json.dumps({"model": "nano", "max_tokens": 8, "messages": [{"role": "user", "content": "Hello"}]})
    ask = f"curl --fail -sS http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json' -d '{question}'"

    machine.wait_for_unit("ninfer.service", timeout=600)
    assert json.loads(machine.succeed(ask))["usage"]["completion_tokens"] > 0

    with subtest("nothing but the loopback is open"):
        assert "0.0.0.0:8080" not in machine.succeed("ss -ltn")

    with subtest("the unit keeps its hardening"):
        machine.succeed("systemd-analyze security --threshold=40 ninfer.service")

    with subtest("a killed box comes back"):
        machine.succeed("systemctl kill --signal=KILL ninfer.service")
        machine.wait_until_succeeds(ask, timeout=600)

    with subtest("a plan for a card that is only described"):
        plan = machine.succeed("ninfer-appliance plan qwen38-27b --machine ${card}")
        assert "RTX 3090" in plan
  '';
}
