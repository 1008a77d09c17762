"""What an artifact says about itself, as data and as text (spec/artifact.md §5.6). Reads nothing but the directory."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from msgspec import UNSET

from engine.artifact.directory import Binding, Component, IndexedProposal, Resource, Tensor
from engine.artifact.formats import FORMATS
from engine.artifact.header import PAGE
from engine.artifact.reader import Artifact


def summary(artifact: Artifact, *, objects: bool = False, bindings: bool = False) -> dict[str, Any]:
    """A JSON-able description. `objects` and `bindings` add the full lists."""
    directory = artifact.directory
    tensors, resources = directory.tensors, directory.resources
    starts = [artifact.payload.start, *[PAGE] * (len(directory.files) - 1)]
    files = [
        {
            "path": record.path or artifact.path.name,
            "bytes": start + record.payload_bytes,
            "payload": record.payload_bytes,
        }
        for start, record in zip(starts, directory.files, strict=True)
    ]
    tensor_bytes = sum(tensor.bytes for tensor in tensors)
    resource_bytes = sum(resource.bytes for resource in resources)
    result: dict[str, Any] = {
        "path": str(artifact.path),
        "version": 3,
        "artifact_id": artifact.artifact_id.hex(),
        "fingerprint": artifact.fingerprint,
        "name": artifact.name,
        "components": {name: _component(component) for name, component in directory.components.items()},
        "files": files,
        "bytes": {
            "files": sum(file["bytes"] for file in files),
            "payload": directory.payload_bytes,
            "tensors": tensor_bytes,
            "resources": resource_bytes,
            "gaps": directory.payload_bytes - tensor_bytes - resource_bytes,
        },
        "counts": {
            "files": len(files),
            "objects": len(directory.objects),
            "tensors": len(tensors),
            "resources": len(resources),
            "bindings": len(directory.bindings),
            "uses": len(directory.uses),
        },
        "formats": _tally(tensors, "format"),
        "layouts": _tally(tensors, "layout"),
        "metadata": dict(directory.metadata),
        "provenance": dict(directory.provenance),
    }
    if objects:
        result["objects"] = [_object(item) for item in directory.objects.values()]
    if bindings:
        result["bindings"] = {name: _binding(binding) for name, binding in directory.bindings.items()}
    return result


def lines(artifact: Artifact, *, objects: bool = False, bindings: bool = False) -> Iterator[str]:
    """The same as text, a line at a time. Names from the file are printed with control characters escaped."""
    data = summary(artifact)
    size, count = data["bytes"], data["counts"]
    yield f"{data['path']}: artifact version {data['version']}"
    yield f"  name         {printable(data['name'])}"
    yield f"  artifact id  {data['artifact_id']}"
    yield f"  fingerprint  {data['fingerprint']}"
    for index, file in enumerate(data["files"]):
        yield f"  file {index:<8}{printable(file['path'])}  {file['bytes']:,} bytes, {file['payload']:,} of payload"
    yield f"  bytes        {size['files']:,} in files, {size['payload']:,} of payload"
    yield f"               {size['tensors']:,} in tensors, {size['resources']:,} in resources, {size['gaps']:,} in gaps"
    yield "  counts       " + ", ".join(f"{name} {number:,}" for name, number in count.items())
    yield "  components"
    for name, component in data["components"].items():
        facts = [f"target {printable(component['target'])}"] if "target" in component else []
        facts += [f"proposal {component['proposal']}"] if "proposal" in component else []
        facts += [f"resources {', '.join(map(printable, component['resources']))}"] if component["resources"] else []
        yield f"    {printable(name)}  {'; '.join(facts)}".rstrip()
    for title in ("formats", "layouts"):
        yield f"  {title:<26} {'tensors':>8} {'bytes':>18}"
        for name, row in data[title].items():
            known = "" if title == "layouts" or name in FORMATS else "  (unknown to this version)"
            yield f"    {printable(name):<24} {row['tensors']:>8,} {row['bytes']:>18,}{known}"
    if objects:
        yield f"  {'objects':<40} {'offset':>16} {'bytes':>16}"
        for item in artifact.directory.objects.values():
            kind = item.encoding if isinstance(item, Resource) else f"{item.format} {list(item.shape)} {item.layout}"
            yield f"    {printable(item.id):<38} {item.offset:>16,} {item.bytes:>16,}  {printable(kind)}"
    if bindings:
        yield "  bindings"
        for name, binding in artifact.directory.bindings.items():
            parts = [
                part.object if binding.whole else f"{part.object} [{part.begin},{part.end})" for part in binding.parts
            ]
            yield f"    {printable(name)}  {printable(' + '.join(parts))}"


def printable(text: str) -> str:
    """`text` with everything a terminal might obey or not show escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _component(component: Component) -> dict[str, Any]:
    record: dict[str, Any] = {"resources": dict(component.resources)}
    if component.target is not UNSET:
        record["target"] = component.target
    if component.proposal is not UNSET:
        rows = component.proposal.rows if isinstance(component.proposal, IndexedProposal) else None
        record["proposal"] = "full" if rows is None else f"indexed, {rows} rows"
    return record


def _tally(tensors: list[Tensor], key: str) -> dict[str, dict[str, int]]:
    counts, sizes = Counter[str](), Counter[str]()
    for tensor in tensors:
        name = str(getattr(tensor, key))
        counts[name] += 1
        sizes[name] += tensor.bytes
    return {name: {"tensors": counts[name], "bytes": sizes[name]} for name in sorted(counts)}


def _object(item: Tensor | Resource) -> dict[str, Any]:
    if isinstance(item, Resource):
        return {"id": item.id, "encoding": item.encoding, "offset": item.offset, "bytes": item.bytes}
    return {
        "id": item.id,
        "shape": list(item.shape),
        "format": item.format,
        "layout": item.layout,
        "offset": item.offset,
        "bytes": item.bytes,
    }


def _binding(binding: Binding) -> dict[str, Any]:
    if binding.whole:
        return {"object": binding.parts[0].object}
    return {"parts": [{"object": part.object, "range": [part.begin, part.end]} for part in binding.parts]}
