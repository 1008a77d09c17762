"""What a plan must know of a model: from its artifact when that is on disk, else from the catalog."""

import dataclasses
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.artifact import Artifact
from engine.artifact.directory import Tensor
from engine.exits import ConfigurationError
from engine.plan import Geometry, Speculation, Weights

LARGEST_ON_HOST = 2 << 30  # artifacts beyond this are for a card only (design: number types)
_DIRECT_FORMATS = frozenset({"bf16", "fp32", "int32"})


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """Shape and bytes of one model. `parameters` counts those of the text stack; None while only the catalog knows."""

    name: str
    geometry: Geometry
    weights: Weights
    file_bytes: int
    parameters: int | None
    packed: bool  # whether weights are used in their stored form on a card
    origin: str

    @property
    def small(self) -> bool:
        """Whether the host may run it."""
        return self.file_bytes <= LARGEST_ON_HOST

    def host_bytes(self) -> int:
        """Bytes of the text stack's weights on the host, in single precision."""
        return 4 * (self.parameters if self.parameters is not None else self.weights.text)

    def device_bytes(self, speculation: Speculation, *, mtp_experts_q4: bool = False) -> int:
        """Bytes of resident weights on a card. ConfigurationError when a selected bundle is not in the artifact."""
        return self.weights.resident(speculation, mtp_experts_q4=mtp_experts_q4)


def facts(name: str, artifact: Path, catalog: Path) -> ModelFacts:
    """Facts of the model called `name`, whose artifact is or will be at `artifact`.

    Raises:
        ArtifactError: the artifact is there and is not one we read.
        ConfigurationError: it is not there, and the catalog does not describe it.
    """
    if not artifact.is_file():
        return facts_of_catalog(name, catalog)
    with Artifact.open(artifact) as opened:
        found = facts_of_artifact(name, opened, artifact.stat().st_size)
    # What a transcode at load would save is not in the directory.
    record = _read(catalog).get("models", {}).get(name, {})
    saving = record.get("mtp_experts_q4_saving_bytes", 0)
    return dataclasses.replace(found, weights=dataclasses.replace(found.weights, mtp_experts_q4_saving=saving))


def facts_of_artifact(name: str, artifact: Artifact, file_bytes: int) -> ModelFacts:
    """Facts read from the directory alone; no weight is touched."""
    groups: dict[str, str] = {}
    for parameter, binding in artifact.directory.bindings.items():
        component = parameter.split("/", 1)[0]
        for part in binding.parts:
            groups.setdefault(part.object, component)
    sizes: dict[str, int] = {}
    parameters, packed = 0, False
    for item in artifact.directory.objects.values():
        if isinstance(item, Tensor) and item.id in groups:
            component = groups[item.id]
            sizes[component] = sizes.get(component, 0) + item.bytes
            parameters += item.elements if component == "text" else 0
            packed = packed or item.format not in _DIRECT_FORMATS
    weights = Weights(
        text=sizes.get("text", 0),
        mtp=sizes.get("mtp"),
        dflash=sizes.get("dflash"),
        dflash2=sizes.get("dflash2"),
        draft_head=sizes.get("proposal"),
    )
    return ModelFacts(
        name=name,
        geometry=Geometry.of(artifact.text_config),
        weights=weights,
        file_bytes=file_bytes,
        parameters=parameters,
        packed=packed,
        origin=f"artifact {artifact.path}",
    )


def facts_of_catalog(name: str, catalog: Path) -> ModelFacts:
    """Facts written in the catalog beside the pin.

    Raises:
        ConfigurationError: the catalog does not describe the model.
    """
    raw = _read(catalog)
    models = raw.get("models", {})
    if name not in models:
        raise ConfigurationError(f"unknown model {name!r}; the catalog has {', '.join(sorted(models))}")
    record = models[name]
    if "path" in record:
        raise ConfigurationError(f"{name} ships with the program, but {catalog.parent / record['path']} is not there")
    shape = raw.get("geometries", {}).get(record.get("geometry"))
    if shape is None:
        raise ConfigurationError(f"catalog {catalog}: models.{name} has no geometry; fetch the artifact first")
    try:
        geometry = Geometry(**shape)
    except TypeError as error:
        raise ConfigurationError(f"catalog {catalog}: geometries.{record['geometry']}: {error}") from error
    return ModelFacts(
        name=name,
        geometry=geometry,
        weights=_weights(catalog, name, record),
        file_bytes=record["bytes"],
        parameters=None,
        packed=True,
        origin=f"catalog {catalog}",
    )


def _weights(catalog: Path, name: str, record: dict[str, Any]) -> Weights:
    found = {
        field.name: record[f"{field.name}_bytes"]
        for field in dataclasses.fields(Weights)
        if f"{field.name}_bytes" in record
    }
    for key, value in found.items():
        if type(value) is not int or value < 0:
            raise ConfigurationError(f"catalog {catalog}: models.{name}.{key}_bytes is {value!r}, not a size")
    if "text" not in found:
        raise ConfigurationError(f"catalog {catalog}: models.{name}.text_bytes is missing")
    return Weights(**found)


def _read(catalog: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(catalog.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"catalog {catalog}: {error}") from error
