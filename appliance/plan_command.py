"""`ninfer-appliance plan MODEL`: what would be started here, or on a described machine, and why not more."""

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.table import Table

from appliance.machine import Machine, read_machine
from appliance.settings import load_settings
from appliance.sizing import make_plan, probe_machine
from engine.exits import ExitCode, NInferError
from engine.log import configure
from engine.options import parser, refuse_unknown
from engine.plan import MIB, RECORDS, NoPlanError, Plan, Rejected, explain, unsupported

PROGRAM = "ninfer-appliance plan"

# Columns of the table of rejected rungs: components that share one.
_COLUMNS = {
    "weights + context": ("weights", "device context"),
    "KV": ("KV pages", "MTP KV pages", "drafter KV pages", "block tables"),
    "states": ("state images", "replay records"),
    "workspace": ("workspace", "prefill hidden", "drafter features", "vision bridge"),
    "graphs": ("graphs",),
}


def main(
    arguments: Sequence[str] | None = None, environ: Mapping[str, str] = os.environ, out: TextIO = sys.stdout
) -> int:
    """Run the command as a program; returns the exit status."""
    try:
        return run(sys.argv[1:] if arguments is None else arguments, environ, out)
    except NInferError as error:
        sys.stderr.write(f"{PROGRAM}: {error}\n")
        return error.exit_code


def run(arguments: Sequence[str], environ: Mapping[str, str] = os.environ, out: TextIO = sys.stdout) -> int:
    """Print the plan for `arguments`; returns the exit status.

    Raises:
        NInferError: a setting or description is wrong, no device may run the model, or nothing fits. The rungs that
            were tried are printed before that.
    """
    refuse_unknown(arguments)
    options, flags = _parse(arguments)
    if options.name is not None:
        flags["model"] = options.name
    box = load_settings(flags, environ)
    level = box.resolved.options.log_level
    configure("plan", "warning" if level == "info" else level, json=box.resolved.options.log_json)
    machine = probe_machine(box, _to_stderr) if options.machine is None else read_machine(options.machine)
    constants = None if options.constants is None else RECORDS[options.constants]
    try:
        plan = make_plan(box, machine, constants=constants, supported=None)
    except NoPlanError as error:
        if options.json:
            failed = {
                "error": str(error),
                "rejected": [row.as_dict() for row in error.rejected],
                "nearest": None if error.nearest is None else error.nearest.as_dict(),
            }
            out.write(json.dumps(failed, indent=2) + "\n")
        else:
            _print_rejected(Console(file=out, highlight=False, soft_wrap=True), error.rejected)
        raise
    if options.json:
        missing = list(unsupported(plan))
        record = plan.as_dict() | {"unsupported": missing, "machine": machine.as_dict()}
        out.write(json.dumps(record, indent=2) + "\n")
    else:
        print_plan(plan, machine, out)
    return ExitCode.CLEAN


def print_plan(plan: Plan, machine: Machine, out: TextIO) -> None:
    """For a person: tables on a terminal, aligned columns elsewhere."""
    console = Console(file=out, highlight=False, soft_wrap=True)
    card = next((card for card in machine.cards if card.device == plan.device), None)
    if card is not None:
        console.print(
            f"{card.name} ({card.device}): {_mib(card.total_bytes)} MiB, free {_mib(card.free_bytes)}, "
            f"used by others {_mib(card.used_bytes)}, reserved by the driver {_mib(card.reserved_bytes)}"
        )
    else:
        console.print(
            f"CPU: {machine.cpu_count} cores, {_mib(machine.host_available_bytes)} MiB of host memory available"
        )
    lanes = f"{plan.lanes} lane{'s' if plan.lanes > 1 else ''}"
    console.print(
        f"{plan.model}: {plan.max_context} tokens, {lanes}, pool of {plan.kv_capacity} tokens, {plan.kv_dtype}, "
        f"speculation {plan.settings.speculation}"
    )
    for change in plan.reduced:
        console.print(f"reduced: {change}")
    rows = [[name, _mib(size)] for name, size in plan.ledger.items()]
    rows.append(["planned", _mib(plan.planned_bytes)])
    if plan.headroom_bytes:
        rows.append(["headroom", _mib(plan.headroom_bytes)])
    rows.append(["left", _mib(plan.left_bytes)])
    _print_table(console, "ledger", ["component", "MiB"], rows)
    _print_rejected(console, plan.rejected)
    for note in plan.notes:
        console.print(f"note: {note}")
    console.print(f"note: constants {plan.constants}: {plan.origin}")
    missing = unsupported(plan)
    if missing:
        console.print(f"note: {explain(missing)}")


def _print_rejected(console: Console, rejected: Sequence[Rejected]) -> None:
    if not rejected:
        return
    rows = []
    for row in rejected:
        parts = [sum(row.ledger.get(name, 0) for name in names) for names in _COLUMNS.values()]
        other = sum(row.ledger.values()) - sum(parts)
        sizes = [*parts, other, row.headroom, row.short]
        rows.append([str(row.max_context), str(row.lanes), *(_mib(size) for size in sizes), row.reason])
    header = ["tokens", "lanes", *_COLUMNS, "other", "headroom", "short", "reason"]
    _print_table(console, "rejected (MiB)", header, rows)


def _print_table(console: Console, title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Text columns to the left, numbers to the right."""
    left = [
        not any(row[column].replace(".", "").lstrip("-").isdigit() for row in rows) for column in range(len(header))
    ]
    if console.is_terminal:
        table = Table(title=title, title_justify="left")
        for name, text in zip(header, left, strict=True):
            table.add_column(name, justify="left" if text else "right")
        for row in rows:
            table.add_row(*row)
        console.print(table)
        return
    widths = [max(len(line[column]) for line in (header, *rows)) for column in range(len(header))]
    console.print(f"{title}:", markup=False)
    for line in (header, *rows):
        cells = [
            cell.ljust(width) if text else cell.rjust(width)
            for cell, width, text in zip(line, widths, left, strict=True)
        ]
        console.print(("  " + "  ".join(cells)).rstrip(), markup=False)


def _to_stderr(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def _mib(size: int) -> str:
    return f"{size / MIB:.1f}"


def _parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, dict[str, str | None]]:
    made = parser("appliance", PROGRAM, __doc__ or "")
    made.add_argument("name", nargs="?", metavar="MODEL", help="catalog name or path of an artifact")
    made.add_argument(
        "--machine", type=Path, metavar="FILE", help="plan for the machine described in FILE (TOML, JSON)"
    )
    made.add_argument("--json", action="store_true", help="print the plan as JSON")
    made.add_argument("--constants", choices=sorted(RECORDS), help="figures of another engine (default: this one's)")
    options = made.parse_args(arguments)
    own = {"name", "machine", "json", "constants"}
    return options, {key: value for key, value in vars(options).items() if key not in own}


if __name__ == "__main__":
    sys.exit(main())
