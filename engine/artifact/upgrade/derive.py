"""From the objects of version 2 to the directory of version 3: bindings, uses, components (spec/artifact.md §1.6)."""

from collections.abc import Mapping
from math import prod
from typing import Any

from engine.artifact.parameters import Parameter, Registry, component_registry
from engine.artifact.planning import PlannedObject, ResourceSpec, TensorSpec
from engine.artifact.upgrade.names import divided_by, parameters_of
from engine.artifact.upgrade.shapes import Shape
from engine.artifact.upgrade.version2 import DIVISOR, OldArtifact
from engine.exits import ArtifactError

FRONTEND = "frontend/"
TEMPLATE = FRONTEND + "chat_template.jinja"
_TEXT_RESOURCES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
_VISION_RESOURCES = ("preprocessor_config.json", "video_preprocessor_config.json")
_POLICIES = {"nvfp4": "AllowA4", "fp8_e4m3fn_row_bf16": "AllowA8"}


def derive(old: OldArtifact, shape: Shape) -> dict[str, Any]:
    """The root object of version 3, except `objects` and `files`.

    Raises:
        ArtifactError: an object is unknown or of another shape or type, or a parameter or resource is missing.
    """
    registry = component_registry(shape.configs, shape.proposal_rows)
    resources = {item.id for item in old.objects.values() if isinstance(item.spec, ResourceSpec)}
    expected = {FRONTEND + role for role in (*_TEXT_RESOURCES, *_VISION_RESOURCES)}
    if resources != expected:
        raise ArtifactError(
            f"resources missing: {sorted(expected - resources)}, unknown: {sorted(resources - expected)}"
        )
    tensors = {item.id: item for item in old.objects.values() if isinstance(item.spec, TensorSpec)}
    bindings, formats = _bindings(tensors, registry, shape)
    uses = _uses(registry, formats, _divisors(tensors, registry, formats))
    if len(bindings) != shape.bindings:
        raise ArtifactError(f"{len(bindings)} parameters are bound; such a file has {shape.bindings}")
    return {
        "components": _components(shape),
        "bindings": bindings,
        "uses": uses,
        "metadata": {"name": old.model_id},
        "provenance": {"upgraded_from": {"version": 2, "model_id": old.model_id, "weights_id": old.weights_id}},
    }


def _bindings(
    tensors: Mapping[str, PlannedObject], registry: Registry, shape: Shape
) -> tuple[dict[str, Any], dict[str, str]]:
    """The binding and the format of every parameter, in registration order."""
    known = {parameter.name: parameter for parameter in registry if parameter.alias is None}
    experts = shape.configs["text"].get("num_experts", 0)
    places: dict[str, dict[str, Any]] = {}
    formats: dict[str, str] = {}
    for id, item in tensors.items():
        if id.endswith(DIVISOR):
            continue
        assert isinstance(item.spec, TensorSpec)
        names = parameters_of(id, experts)
        unknown = [name for name in names if name not in known]
        if not names or unknown:
            raise ArtifactError(f"object {id!r} is not one that this model has")
        members = [known[name] for name in names]
        _check(item.spec, members)
        begin = 0
        for member in members:
            if member.name in places:
                raise ArtifactError(f"object {id!r} holds {member.name!r}, which another object holds too")
            end = begin + prod(member.shape)
            whole = len(members) == 1
            places[member.name] = {"object": id} if whole else {"parts": [{"object": id, "range": [begin, end]}]}
            formats[member.name] = item.spec.format
            begin = end
    missing = [name for name in known if name not in places]
    if missing:
        raise ArtifactError(f"no object holds {missing[0]!r}, and {len(missing) - 1} more parameters are missing")
    return (
        {parameter.name: places[parameter.alias or parameter.name] for parameter in registry},
        {parameter.name: formats[parameter.alias or parameter.name] for parameter in registry},
    )


def _check(spec: TensorSpec, members: list[Parameter]) -> None:
    shape = (sum(member.shape[0] for member in members), *members[0].shape[1:])
    if spec.shape != shape:
        raise ArtifactError(f"object {spec.id!r} has shape {list(spec.shape)}; this model has {list(shape)}")
    for member in members:
        if spec.format != member.direct and not member.quantizable:
            raise ArtifactError(f"object {spec.id!r} is {spec.format}; {member.name!r} must be {member.direct}")


def _divisors(tensors: Mapping[str, PlannedObject], registry: Registry, formats: Mapping[str, str]) -> dict[str, str]:
    """The divisor object of each parameter that has one."""
    known = {parameter.name for parameter in registry}
    divisors: dict[str, str] = {}
    for id in tensors:
        if not id.endswith(DIVISOR):
            continue
        names = divided_by(id.removesuffix(DIVISOR))
        if not names or not known.issuperset(names):
            raise ArtifactError(f"object {id!r} divides the input of nothing that this model has")
        divisors |= dict.fromkeys(names, id)
    for name, format in formats.items():
        if (format == "nvfp4") != (name in divisors):
            lacks = "lacks an activation divisor" if format == "nvfp4" else "has an activation divisor"
            raise ArtifactError(f"parameter {name!r} is {format} and {lacks}")
    return divisors


def _uses(registry: Registry, formats: Mapping[str, str], divisors: Mapping[str, str]) -> list[dict[str, Any]]:
    uses: list[dict[str, Any]] = []
    for parameter in registry:
        for source in parameter.inputs:
            use: dict[str, Any] = {
                "parameter": parameter.name,
                "input": source,
                "activation_policy": _POLICIES.get(formats[parameter.name], "A16Only"),
            }
            if parameter.name in divisors:
                use["auxiliaries"] = {"activation_input_divisor": {"object": divisors[parameter.name]}}
            uses.append(use)
    return uses


def _components(shape: Shape) -> dict[str, Any]:
    roles = {"text": _TEXT_RESOURCES, "vision": _VISION_RESOURCES}
    components: dict[str, Any] = {}
    for name, config in shape.configs.items():
        record: dict[str, Any] = {"config": dict(config)}
        if name != "text":
            record["target"] = "text"
        if name in roles:
            record["resources"] = {role: FRONTEND + role for role in roles[name]}
        if name == "text":
            record["proposal"] = {"domain": "indexed", "rows": shape.proposal_rows}
        components[name] = record
    return components
