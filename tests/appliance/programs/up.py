# ruff: noqa: T201
"""The real `up` with scripted programs: `python -m tests.appliance.programs.up POLICY_JSON [flags]`."""

import json
import sys

from appliance.policy import Policy
from appliance.run_folder import RunFiles
from appliance.settings import Settings, load_settings
from appliance.supervisor import Programs
from appliance.up import Launch, run
from engine.exits import NInferError
from engine.options import parser


def programs(settings: Settings, files: RunFiles) -> Programs:
    """Scripted ones, around the real controller."""

    def module(name: str, *arguments: str) -> list[str]:
        return [sys.executable, "-W", "error", "-m", f"tests.appliance.programs.{name}", *arguments]

    return Programs(
        api=module("api", "--config", str(files.api_config)),
        controller=module("controller", str(files.controller_config)),
        engine=module("engine", "--config", str(files.engine_config)),
        fetch=module("fetch"),
    )


def main() -> int:
    """Like the command."""
    flags = vars(parser("appliance", "up", "").parse_args(sys.argv[2:]))
    try:
        return run(load_settings(flags), Launch(programs=programs, policy=Policy(**json.loads(sys.argv[1]))))
    except NInferError as error:
        print(f"up: {error}", file=sys.stderr)
        return int(error.exit_code)


if __name__ == "__main__":
    sys.exit(main())
