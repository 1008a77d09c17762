"""The JSON directory of an artifact, typed and checked (spec/artifact.md §1.2).

Records are closed: an unknown member is an error. `metadata`, `provenance` and a component's `config` are open.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from engine.artifact.layouts import MAX_RANK, MAX_U64
from engine.artifact.strict_json import parse_json, short
from engine.exits import ArtifactError

Id: TypeAlias = Annotated[str, Meta(min_length=1, pattern=r"\A[^\0]+\Z")]
Count: TypeAlias = Annotated[int, Meta(ge=0)]
Size: TypeAlias = Annotated[int, Meta(gt=0)]


class _Record(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


class FileRecord(_Record, frozen=True):
    """One file of the set; `path` is None for the entry file."""

    path: Id | None
    payload_bytes: Size


class FullProposal(_Record, frozen=True, tag_field="domain", tag="full"):
    """The proposal head scores every token."""


class IndexedProposal(_Record, frozen=True, tag_field="domain", tag="indexed"):
    """The proposal head scores `rows` tokens, listed by `proposal/token_ids`."""

    rows: Size


class Component(_Record, frozen=True):
    """One component: its opaque configuration, the component it serves, and its resources by role."""

    config: dict[str, Any]
    target: Id | UnsetType = UNSET
    resources: dict[Id, Id] = {}
    proposal: FullProposal | IndexedProposal | UnsetType = UNSET


class Tensor(_Record, frozen=True, tag_field="kind", tag="tensor"):
    """An encoded tensor in the logical payload. Format and layout are looked up when it is first used."""

    id: Id
    shape: Annotated[tuple[Size, ...], Meta(max_length=MAX_RANK)]
    format: Id
    layout: Id
    offset: Count
    bytes: Size

    @property
    def elements(self) -> int:
        """Logical elements."""
        return prod(self.shape)


class Resource(_Record, frozen=True, tag_field="kind", tag="resource"):
    """Some bytes in the logical payload."""

    id: Id
    encoding: Id
    offset: Count
    bytes: Size


class _Part(_Record, frozen=True):
    object: Id
    range: tuple[Count, Count]


class _Binding(_Record, frozen=True):
    object: Id | UnsetType = UNSET
    parts: Annotated[list[_Part], Meta(min_length=1)] | UnsetType = UNSET


class _Use(_Record, frozen=True):
    parameter: Id
    input: Id
    activation_policy: Literal["A16Only", "AllowA8", "AllowA4"] | UnsetType = UNSET
    auxiliaries: dict[Id, _Binding] = {}


class Part(Struct, frozen=True):
    """Elements `[begin, end)` of a tensor, in C order."""

    object: str
    begin: int
    end: int


class Binding(Struct, frozen=True):
    """What a logical parameter is made of. `whole` says it is one tensor, shape included."""

    parts: tuple[Part, ...]
    whole: bool

    @property
    def elements(self) -> int:
        """Logical elements."""
        return sum(part.end - part.begin for part in self.parts)


class Use(Struct, frozen=True):
    """A parameter as the projection of one input. `activation_policy` is None when the file gives none."""

    parameter: str
    input: str
    activation_policy: str | None
    auxiliaries: Mapping[str, Binding]


@dataclass(frozen=True)
class Directory:
    """Everything an artifact says about itself."""

    components: Mapping[str, Component]
    objects: Mapping[str, Tensor | Resource]
    bindings: Mapping[str, Binding]
    uses: tuple[Use, ...]
    files: tuple[FileRecord, ...]
    metadata: Mapping[str, Any]
    provenance: Mapping[str, Any]

    @property
    def payload_bytes(self) -> int:
        """Bytes of the logical payload over all files."""
        return sum(file.payload_bytes for file in self.files)

    @property
    def tensors(self) -> list[Tensor]:
        """Tensor objects in payload order."""
        return [item for item in self.objects.values() if isinstance(item, Tensor)]

    @property
    def resources(self) -> list[Resource]:
        """Resource objects in payload order."""
        return [item for item in self.objects.values() if isinstance(item, Resource)]

    @property
    def name(self) -> str:
        """Name in the metadata, else the architecture of the text component."""
        if "name" in self.metadata:
            return str(self.metadata["name"])
        match self.components["text"].config.get("architectures"):
            case [str(architecture), *_]:
                return architecture
        return "unnamed"


_ROOT_REQUIRED = ("components", "objects", "bindings", "uses", "files")
_ROOT_OPTIONAL = ("metadata", "provenance")
_T = TypeVar("_T")


def parse_directory(text: bytes, entry_name: str) -> Directory:
    """Parse and check the directory of the entry file called `entry_name`.

    Raises:
        ArtifactError: the text is not the JSON of a valid directory; the message says where and why.
    """
    try:
        return _directory(parse_json(text), entry_name)
    except RecursionError:
        raise ArtifactError("directory: values are nested too deeply") from None


def _directory(root: Any, entry_name: str) -> Directory:
    if not isinstance(root, dict):
        raise ArtifactError("directory: the JSON value is not an object")
    missing = [name for name in _ROOT_REQUIRED if name not in root]
    unknown = [short(name) for name in root if name not in _ROOT_REQUIRED + _ROOT_OPTIONAL]
    if missing or unknown:
        raise ArtifactError(f"directory: missing members {missing}, unknown members [{', '.join(unknown)}]")
    files = _files(_array(root, "files"), entry_name)
    objects = _objects(_array(root, "objects"), sum(file.payload_bytes for file in files))
    if not objects:
        raise ArtifactError("directory: objects is empty")
    components = _components(_object(root, "components"), objects)
    bindings: dict[str, Binding] = {}
    for name, record in _object(root, "bindings").items():
        where = f"bindings[{short(name)}]"
        _convert(name, Id, where)
        bindings[name] = _binding(_convert(record, _Binding, where), objects, where)
    uses = _uses(_array(root, "uses"), bindings, objects)
    metadata = _convert(root.get("metadata", {}), dict[str, Any], "metadata")
    if "name" in metadata:
        _convert(metadata["name"], Id, "metadata.name")
    provenance = _convert(root.get("provenance", {}), dict[str, Any], "provenance")
    return Directory(components, objects, bindings, uses, files, metadata, provenance)


def _files(records: list[Any], entry_name: str) -> tuple[FileRecord, ...]:
    files = tuple(_convert(record, FileRecord, f"files[{index}]") for index, record in enumerate(records))
    if not files or files[0].path is not None:
        raise ArtifactError("directory: files must begin with the entry file, whose path is null")
    names = {entry_name}
    for index, file in enumerate(files[1:], 1):
        path = file.path
        if path is None or path in (".", "..") or set(path) & {"/", "\\", "\0"}:
            raise ArtifactError(f"directory: files[{index}].path is {short(path)}, not the plain name of a file beside")
        if path in names:
            raise ArtifactError(f"directory: files[{index}].path {short(path)} is the entry file or appears twice")
        names.add(path)
    if sum(file.payload_bytes for file in files) > MAX_U64:
        raise ArtifactError("directory: files hold more than 2^64-1 payload bytes")
    return files


def _objects(records: list[Any], payload_bytes: int) -> dict[str, Tensor | Resource]:
    objects: dict[str, Tensor | Resource] = {}
    position = 0
    for index, record in enumerate(records):
        item: Tensor | Resource = _convert(record, Tensor | Resource, f"objects[{index}]")
        where = f"directory: objects[{index}] {short(item.id)}"
        if item.id in objects:
            raise ArtifactError(f"{where}: another object has this id")
        if item.offset < position:
            raise ArtifactError(f"{where}: starts at {item.offset}, before the end of the object before ({position})")
        position = item.offset + item.bytes
        if position > payload_bytes:
            raise ArtifactError(f"{where}: ends at {position}, beyond the payload of {payload_bytes} bytes")
        if isinstance(item, Tensor) and item.elements > MAX_U64:
            raise ArtifactError(f"{where}: the shape has more than 2^64-1 elements")
        objects[item.id] = item
    return objects


def _components(records: dict[str, Any], objects: Mapping[str, Tensor | Resource]) -> dict[str, Component]:
    components: dict[str, Component] = {}
    for name, record in records.items():
        _convert(name, Id, f"components[{short(name)}]")
        components[name] = _convert(record, Component, f"components[{short(name)}]")
    if "text" not in components:
        raise ArtifactError(f"directory: no component 'text' among {[short(name) for name in components]}")
    for name, component in components.items():
        where = f"directory: components[{short(name)}]"
        if component.target is not UNSET and component.target not in components:
            raise ArtifactError(f"{where}: its target {short(component.target)} is not a component")
        if component.proposal is not UNSET and name != "text":
            raise ArtifactError(f"{where}: only 'text' has a proposal")
        for role, resource in component.resources.items():
            if not isinstance(objects.get(resource), Resource):
                raise ArtifactError(f"{where}: resource {short(role)} is {short(resource)}, not a resource object")
    return components


def _binding(record: _Binding, objects: Mapping[str, Tensor | Resource], where: str) -> Binding:
    if record.object is not UNSET and record.parts is UNSET:
        tensor = _tensor(record.object, objects, where)
        return Binding((Part(tensor.id, 0, tensor.elements),), True)
    if record.object is UNSET and record.parts is not UNSET:
        parts = []
        for part in record.parts:
            tensor = _tensor(part.object, objects, where)
            begin, end = part.range
            if not begin < end <= tensor.elements:
                raise ArtifactError(
                    f"directory: {where}: range [{begin},{end}] is not inside {short(tensor.id)}, "
                    f"which has {tensor.elements} elements"
                )
            parts.append(Part(tensor.id, begin, end))
        return Binding(tuple(parts), False)
    raise ArtifactError(f"directory: {where}: needs exactly one of 'object' and 'parts'")


def _tensor(id: str, objects: Mapping[str, Tensor | Resource], where: str) -> Tensor:
    item = objects.get(id)
    if isinstance(item, Tensor):
        return item
    reason = "is not an object" if item is None else "is a resource, not a tensor"
    raise ArtifactError(f"directory: {where}: {short(id)} {reason}")


def _uses(
    records: list[Any], bindings: Mapping[str, Binding], objects: Mapping[str, Tensor | Resource]
) -> tuple[Use, ...]:
    uses: dict[tuple[str, str], Use] = {}
    for index, record in enumerate(records):
        use = _convert(record, _Use, f"uses[{index}]")
        where = f"uses[{index}] of {short(use.parameter)}"
        if use.parameter not in bindings:
            raise ArtifactError(f"directory: {where}: no such parameter is bound")
        key = use.parameter, use.input
        if key in uses:
            raise ArtifactError(f"directory: {where}: another use has the input {short(use.input)}")
        policy = None if use.activation_policy is UNSET else use.activation_policy
        auxiliaries = {
            role: _binding(binding, objects, f"{where} {short(role)}") for role, binding in use.auxiliaries.items()
        }
        uses[key] = Use(use.parameter, use.input, policy, auxiliaries)
    return tuple(uses.values())


def _array(root: dict[str, Any], name: str) -> list[Any]:
    items: list[Any] = _convert(root[name], list[Any], name)
    return items


def _object(root: dict[str, Any], name: str) -> dict[str, Any]:
    members: dict[str, Any] = _convert(root[name], dict[str, Any], name)
    return members


def _convert(value: Any, type: Any, where: str) -> Any:
    try:
        return msgspec.convert(value, type)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at `$")
        raise ArtifactError(f"directory: {where}{path.rstrip('`')}: {reason[:200]}") from None
