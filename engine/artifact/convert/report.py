"""The report of a conversion, `<out>.conversion.json`: advice for people, read by no engine (spec/artifact.md §5.4)."""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from engine.artifact.convert.importance import ImportanceMatrix
from engine.artifact.convert.planner import Parent, Plan
from engine.artifact.convert.recipes import SEARCH
from engine.artifact.convert.tensors import Source
from engine.artifact.formats import find_format
from engine.artifact.unfinished import write_new


def report_path(out: Path) -> Path:
    """Where the report of the artifact `out` goes."""
    return out.with_name(out.name + ".conversion.json")


def write_report(
    out: Path,
    plan: Plan,
    sources: Mapping[str, Source],
    importance: ImportanceMatrix,
    outcome: Mapping[str, Any],
) -> dict[str, Any]:
    """Write the report of a finished conversion and return it. `outcome` holds what only the run knows.

    Raises:
        ArtifactError: a report has appeared meanwhile.
        OSError: the disk does not take it.
    """
    directory = plan.directory
    report = {
        "components": list(directory["components"]),
        "name": directory["metadata"].get("name"),
        "output": str(out),
        "device": "cpu",
        "numpy_version": np.__version__,
        **outcome,
        "provenance": directory["provenance"],
        "parameters": len(directory["bindings"]),
        "uses": len(directory["uses"]),
        "objects": len(plan.objects),
        "payload_bytes": plan.payload_bytes,
        "formats": dict(Counter(parent.selection.format for parent in plan.parents)),
        "methods": [_method(parent, sources, importance) for parent in plan.parents],
    }
    write_new(report_path(out), (json.dumps(report, indent=1, ensure_ascii=False) + "\n").encode())
    return report


def summary(report: Mapping[str, Any]) -> str:
    """A few lines about a finished conversion."""
    formats = ", ".join(f"{count} {format}" for format, count in report["formats"].items())
    files = f"{len(report['files'])} file{'s' if len(report['files']) > 1 else ''}"
    lines = [
        f"{report['output']}: {report['payload_bytes']:,} payload bytes in {files}, {report['seconds']:.1f} s",
        f"components {', '.join(report['components'])}; tensors {formats}; artifact id {report['artifact_id']}",
    ]
    if report["ignored_settings"]:
        lines.append(
            f"settings of config.json that this version does not know: {', '.join(report['ignored_settings'])}"
        )
    return "\n".join(lines)


def _method(parent: Parent, sources: Mapping[str, Source], importance: ImportanceMatrix) -> dict[str, Any]:
    selection = parent.selection
    parameters: dict[str, Any] = {}
    if selection.method == SEARCH:
        weighted = importance.of(parent.parameters) is not None
        parameters = {"imatrix": importance.source if weighted else None, "negative_scales": True}
    return {
        "object": parent.id,
        "parameters": [member.name for member in parent.parameters],
        "sources": list(
            dict.fromkeys(sources[member.name].tensor for member in parent.parameters if member.name in sources)
        ),
        "method": selection.method,
        "method_parameters": parameters,
        "format": selection.format,
        "layout": find_format(selection.format).layout,
        "shape": list(parent.shape),
    }
