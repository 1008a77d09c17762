"""`ninfer-appliance`: up, status, plan, keys, client, stop, doctor."""

import json
import sys
from collections.abc import Callable, Sequence

import msgspec

from appliance.settings import Settings, load_settings
from engine.exits import NInferError
from engine.options import parser, refuse_unknown

PROGRAM = "ninfer-appliance"
EPILOG = "Settings come from flags, NINFER_* variables, HOME/settings.toml and defaults, in this order."


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help"):
        print(usage())
        return 0 if words else 2
    command, rest = words[0], words[1:]
    if command not in COMMANDS:
        print(f"{PROGRAM}: unknown command {command!r}\n{usage()}", file=sys.stderr)
        return 2
    try:
        return COMMANDS[command][0](rest)
    except NInferError as error:
        print(f"{PROGRAM} {command}: {error}", file=sys.stderr)
        return int(error.exit_code)
    except KeyboardInterrupt:
        return 130


def usage() -> str:
    """The commands."""
    listed = "\n".join(f"  {name:<8}{text}" for name, (_, text) in COMMANDS.items())
    return f"usage: {PROGRAM} COMMAND [options]\n\n{listed}\n\n{PROGRAM} COMMAND --help lists the options."


def read(command: str, about: str, rest: Sequence[str], *switches: str) -> tuple[Settings, set[str]]:
    """Settings from the flags in `rest`, and which of `switches` were given.

    Raises:
        ConfigurationError: a flag or a value is wrong.
    """
    made = parser("appliance", f"{PROGRAM} {command}", about)
    made.epilog = EPILOG
    for switch in switches:
        made.add_argument(switch, action="store_true", help=SWITCHES[switch])
    refuse_unknown(rest)
    flags = vars(made.parse_args(rest))
    given = {switch for switch in switches if flags.pop(switch.removeprefix("--"))}
    return load_settings(flags), given


def _up(rest: Sequence[str]) -> int:
    settings, _ = read("up", "Start the box and stay with it until it ends.", rest)
    from appliance.up import run  # noqa: PLC0415  (each command loads what it needs)

    return run(settings)


def _status(rest: Sequence[str]) -> int:
    settings, given = read("status", "Show what the box of this home is doing.", rest, "--json")
    from appliance import status  # noqa: PLC0415

    found = status.look(settings)
    print(json.dumps(status.as_json(found), indent=2) if "--json" in given else "\n".join(status.lines(found)))
    return status.exit_status(found)


def _plan(rest: Sequence[str]) -> int:
    from appliance import plan_command  # noqa: PLC0415

    return plan_command.main(rest)


def _keys(rest: Sequence[str]) -> int:
    from appliance import keys_command  # noqa: PLC0415

    return keys_command.main(rest)


def _client(rest: Sequence[str]) -> int:
    from appliance import client  # noqa: PLC0415

    return client.main(rest)


def _stop(rest: Sequence[str]) -> int:
    settings, _ = read("stop", "Stop the box of this home.", rest)
    from appliance.stop import stop  # noqa: PLC0415

    print("stopped" if stop(settings) else "no box runs in this home")
    return 0


def _doctor(rest: Sequence[str]) -> int:
    settings, given = read("doctor", "Look for what would keep the box from starting.", rest, "--json", "--fix")
    from appliance import doctor  # noqa: PLC0415

    findings = doctor.examine(settings)
    if "--fix" in given:
        for line in doctor.repair(findings):
            print(f"{PROGRAM} doctor: {line}", file=sys.stderr)
        findings = doctor.examine(settings)
    if "--json" in given:
        print(json.dumps([msgspec.to_builtins(finding.told()) for finding in findings], indent=2))
    else:
        print("\n".join(finding.line() for finding in findings))
    return 0 if all(finding.good for finding in findings) else 1


SWITCHES = {"--json": "print JSON", "--fix": "do what can be done without you"}
COMMANDS: dict[str, tuple[Callable[[Sequence[str]], int], str]] = {
    "up": (_up, "start the box and stay with it"),
    "status": (_status, "show what it is doing"),
    "plan": (_plan, "show what would fit on this machine"),
    "keys": (_keys, "make, list and revoke API keys"),
    "client": (_client, "show how to point a client at it"),
    "stop": (_stop, "stop it"),
    "doctor": (_doctor, "look for what would keep it from starting"),
}


if __name__ == "__main__":
    sys.exit(main())
