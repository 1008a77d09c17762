"""From configurations and a recipe to every object, binding and use of an artifact: pure arithmetic.

Fusion and order follow spec/artifact.md §4.3, places §1.4.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from engine.artifact.companions import DRAFTS
from engine.artifact.convert.recipes import IMPORT, Recipe, Selection
from engine.artifact.parameters import Parameter, Registry, component_registry
from engine.artifact.planning import PlannedObject, ResourceSpec, TensorSpec, payload_size, plan_objects
from engine.exits import ConfigurationError

COMPONENTS = ("text", "mtp", "vision", *DRAFTS)
"""Component ids in the order in which their parameters are registered."""

RESOURCE_ROLES = {
    "tokenizer.json": "text",
    "tokenizer_config.json": "text",
    "chat_template.jinja": "text",
    "generation_config.json": "text",
    "preprocessor_config.json": "vision",
    "video_preprocessor_config.json": "vision",
}
"""Roles in file order, and the component each belongs to."""


@dataclass(frozen=True)
class Parent:
    """One tensor object: the rows of its parameters one behind the other, encoded by one method."""

    id: str
    parameters: tuple[Parameter, ...]
    shape: tuple[int, ...]
    selection: Selection


@dataclass(frozen=True)
class Plan:
    """An artifact as it will be written, except its bytes.

    `directory` is the root object without `files`. `auxiliaries` are scalars that uses refer to: object
    id of an activation divisor, and the parameter whose input it divides.
    """

    parents: tuple[Parent, ...]
    auxiliaries: Mapping[str, str]
    objects: tuple[PlannedObject, ...]
    directory: dict[str, Any]

    @property
    def payload_bytes(self) -> int:
        """Bytes of the logical payload."""
        return payload_size(list(self.objects))


def plan_artifact(
    configs: Mapping[str, Mapping[str, Any]],
    recipe: Recipe,
    resources: Mapping[str, int],
    *,
    name: str | None,
    provenance: Mapping[str, Any],
    proposal_rows: int | None = None,
    divisors: Mapping[str, float] | None = None,
) -> Plan:
    """Plan an artifact of the components in `configs` with resources of the given sizes (role → bytes).

    `divisors` are those of imported NVFP4 parameters: what has different ones is not stored as one object.

    Raises:
        ArtifactError: a config or shape is not possible.
        ConfigurationError: a component or resource role is unknown, or `text` is absent.
    """
    _known("component", configs, COMPONENTS)
    _known("resource", resources, tuple(RESOURCE_ROLES))
    if "text" not in configs:
        raise ConfigurationError("an artifact always has the component text; add it")
    registry = component_registry(configs, proposal_rows)
    if configs["text"]["tie_word_embeddings"]:
        registry = _tie_output_head(registry, recipe)
    selections = {
        parameter.name: replace(recipe.select(parameter), divisor=(divisors or {}).get(parameter.name))
        for parameter in registry
    }
    parents = _parents(registry, selections)
    bindings = _bindings(registry, parents)
    uses, auxiliaries = _uses(registry, selections)

    roles = [role for role in RESOURCE_ROLES if role in resources]
    objects = plan_objects(
        [ResourceSpec(resource_id(role), resources[role]) for role in roles]
        + [TensorSpec(parent.id, parent.shape, parent.selection.format) for parent in parents]
        + [TensorSpec(id, (), "fp32") for id in auxiliaries]
    )
    directory: dict[str, Any] = {
        "components": _components(configs, roles, proposal_rows),
        "objects": [planned.record() for planned in objects],
        "bindings": bindings,
        "uses": uses,
        "metadata": {"name": name} if name is not None else {},
        "provenance": dict(provenance),
    }
    return Plan(tuple(parents), auxiliaries, tuple(objects), directory)


def _tie_output_head(registry: Registry, recipe: Recipe) -> Registry:
    """Let the output head share the embedding's words when the recipe stores both alike."""
    head, embedding = "text/output_head", "text/token_embedding"
    by_name = {parameter.name: parameter for parameter in registry}
    if recipe.select(by_name[head]) != recipe.select(by_name[embedding]):
        return registry
    old = by_name[head]
    tied = Parameter(old.name, old.shape, old.direct, old.inputs, old.quantizable, embedding)
    return Registry(tuple(tied if p.name == head else p for p in registry), registry.groups)


def _parents(registry: Registry, selections: Mapping[str, Selection]) -> list[Parent]:
    by_name = {parameter.name: parameter for parameter in registry}
    packed: set[str] = set()
    rows: list[tuple[Parameter, ...]] = []
    for group in registry.groups:
        first = selections[group[0]]
        if first.fuse and all(selections[name] == first for name in group) and packed.isdisjoint(group):
            packed.update(group)
            rows.append(tuple(by_name[name] for name in group))
    rows += [(p,) for p in registry if p.name not in packed and p.alias is None]
    return [
        Parent(
            f"weight/{index:06d}",
            members,
            (sum(member.shape[0] for member in members), *members[0].shape[1:]),
            selections[members[0].name],
        )
        for index, members in enumerate(rows)
    ]


def _bindings(registry: Registry, parents: Sequence[Parent]) -> dict[str, Any]:
    places: dict[str, dict[str, Any]] = {}
    for parent in parents:
        begin = 0
        for member in parent.parameters:
            end = begin + prod(member.shape)
            whole = len(parent.parameters) == 1
            places[member.name] = (
                {"object": parent.id} if whole else {"parts": [{"object": parent.id, "range": [begin, end]}]}
            )
            begin = end
    return {parameter.name: places[parameter.alias or parameter.name] for parameter in registry}


def _uses(registry: Registry, selections: Mapping[str, Selection]) -> tuple[list[dict[str, Any]], dict[str, str]]:
    uses: list[dict[str, Any]] = []
    auxiliaries: dict[str, str] = {}
    for parameter in registry:
        selection = selections[parameter.alias or parameter.name]
        for source in parameter.inputs:
            use: dict[str, Any] = {
                "parameter": parameter.name,
                "input": source,
                "activation_policy": selection.policy,
            }
            if selection.format == "nvfp4" and selection.method == IMPORT:
                id = f"auxiliary/{len(auxiliaries):06d}"
                auxiliaries[id] = parameter.name
                use["auxiliaries"] = {"activation_input_divisor": {"object": id}}
            uses.append(use)
    return uses, auxiliaries


def _components(
    configs: Mapping[str, Mapping[str, Any]], roles: Sequence[str], proposal_rows: int | None
) -> dict[str, Any]:
    components: dict[str, Any] = {}
    for component in COMPONENTS:
        if component not in configs:
            continue
        record: dict[str, Any] = {"config": dict(configs[component])}
        if component != "text":
            record["target"] = "text"
        own = {role: resource_id(role) for role in roles if RESOURCE_ROLES[role] == component}
        if own:
            record["resources"] = own
        if component == "text" and proposal_rows is not None:
            record["proposal"] = {"domain": "indexed", "rows": proposal_rows}
        components[component] = record
    return components


def resource_id(role: str) -> str:
    """Object id of a resource."""
    return f"resource/{RESOURCE_ROLES[role]}/{role}"


def _known(what: str, given: Mapping[str, Any], known: Sequence[str]) -> None:
    unknown = [name for name in given if name not in known]
    if unknown:
        raise ConfigurationError(f"unknown {what} {unknown[0]!r}; known: {', '.join(known)}")
