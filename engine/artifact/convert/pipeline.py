"""The conversion itself: configuration, plan, then every object chunk by chunk (spec/artifact.md §5.1)."""

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from engine.artifact.companions import parse_vision_config
from engine.artifact.convert.configs import ModelConfigs, read_configs
from engine.artifact.convert.encode import Effort, Progress, Work, encode_parents
from engine.artifact.convert.importance import NO_IMPORTANCE, ImportanceMatrix
from engine.artifact.convert.imported import (
    ORIGIN,
    activation_divisor,
    quantized_sources,
    weight_divisors,
)
from engine.artifact.convert.planner import Plan, plan_artifact, resource_id
from engine.artifact.convert.proposal import TokenIds, rank_tokens, read_ranking, read_token_ids
from engine.artifact.convert.recipes import check_inputs, find_recipe
from engine.artifact.convert.report import report_path, write_report
from engine.artifact.convert.resources import Resources, read_resources
from engine.artifact.convert.sources import Array, Checkpoint, CheckpointError, parse_json_object
from engine.artifact.convert.tensors import (
    Source,
    check_sources,
    mtp_sources,
    text_sources,
    vision_sources,
)
from engine.artifact.parameters import component_registry
from engine.artifact.unfinished import find_unfinished, refuse_existing
from engine.artifact.writer import FILE_LIMIT, ArtifactWriter
from engine.exits import ConfigurationError
from engine.log import get_logger

log = get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to convert and how. `resources` replaces files of the model folder by role, `sources` are other inputs.

    `proposal` adds a proposal head. `threads` chunks are encoded at a time; the bytes do not depend on it.
    `artifact_id` is 16 bytes, by default a fresh random id; with a fixed one the same input gives the same bytes.
    """

    model: Path
    recipe: str
    out: Path
    components: tuple[str, ...] = ("text",)
    name: str | None = None
    rows_per_chunk: int = 512
    max_file_bytes: int = FILE_LIMIT
    resources: Mapping[str, Path] = field(default_factory=dict)
    sources: Mapping[str, Path] = field(default_factory=dict)
    proposal: "ProposalRequest | None" = None
    threads: int = 1
    artifact_id: bytes | None = None


@dataclass(frozen=True, kw_only=True)
class ProposalRequest:
    """How a proposal head is chosen: `rows` tokens by the counts in `ranking`, or those of artifact `ids_from`."""

    rows: int = 131072
    ranking: Path | None = None
    ids_from: Path | None = None


@dataclass(frozen=True)
class Prepared:
    """Everything about a conversion but the bytes: checked, so that writing should succeed."""

    configs: ModelConfigs
    resources: Resources
    plan: Plan
    sources: Mapping[str, Source]
    importance: ImportanceMatrix
    constants: Mapping[str, Array]


def convert(request: Request, progress: Progress | None = None) -> dict[str, Any]:
    """Convert a checkpoint folder to one artifact and write the report beside it. Returns the report.

    The artifact appears under its name only when it is complete. Memory holds one chunk of rows at a time.

    Raises:
        ConfigurationError: an unknown recipe, component or resource, or one that this version cannot convert.
        CheckpointError: the checkpoint is incomplete, damaged, or means other mathematics.
        ArtifactError: the output exists.
        NInferError, OSError: the disk does not take the output.
    """
    begun = time.monotonic()
    if request.rows_per_chunk <= 0:
        raise ConfigurationError(f"rows per chunk is {request.rows_per_chunk}; use 1 or more")
    for target in (request.out, report_path(request.out)):
        refuse_existing(target)
    if not request.out.parent.is_dir():
        raise ConfigurationError(f"{request.out.parent} is not a folder; make it first")
    for left in find_unfinished(request.out):
        log.warning("unfinished_conversion_found", path=str(left.path), bytes=left.bytes, running=left.owned)
    with ExitStack() as stack:
        checkpoints = {"base": stack.enter_context(Checkpoint.open(request.model))}
        if ORIGIN in request.sources:
            checkpoints[ORIGIN] = stack.enter_context(Checkpoint.open(request.sources[ORIGIN]))
        prepared = prepare(request, checkpoints)
        plan = prepared.plan
        ready = time.monotonic()
        with ArtifactWriter(
            request.out,
            plan.objects,
            components=plan.directory["components"],
            bindings=plan.directory["bindings"],
            uses=plan.directory["uses"],
            metadata=plan.directory["metadata"],
            provenance=plan.directory["provenance"],
            limit=request.max_file_bytes,
            artifact_id=request.artifact_id,
        ) as writer:
            for role, content in prepared.resources.contents.items():
                writer.write_resource(resource_id(role), content)
            for id, parameter in plan.auxiliaries.items():
                divisor = activation_divisor(checkpoints[ORIGIN], prepared.sources[parameter])
                writer.write_direct(id, np.array(divisor, np.float32))
            work = Work(checkpoints, plan.parents, prepared.sources, prepared.importance, prepared.constants)
            encode_parents(work, writer, Effort(request.rows_per_chunk, request.threads), progress)
            writer.commit()
    return write_report(
        request.out,
        plan,
        prepared.sources,
        prepared.importance,
        {
            "recipe": request.recipe,
            "rows_per_chunk": request.rows_per_chunk,
            "token_count": prepared.resources.token_count,
            "ignored_settings": list(prepared.configs.ignored),
            "preparation_seconds": round(ready - begun, 3),
            "seconds": round(time.monotonic() - begun, 3),
            "artifact_id": writer.artifact_id.hex(),
            "files": writer.files,
        },
    )


def prepare(request: Request, checkpoints: Mapping[str, Checkpoint]) -> Prepared:
    """Read configuration and resources, plan the artifact and check that every source is there.

    Raises:
        ConfigurationError, CheckpointError, ArtifactError: as `convert`.
    """
    recipe = find_recipe(request.recipe)
    for name in request.sources:
        if name not in recipe.sources:
            known = ", ".join(recipe.sources) or "none"
            raise ConfigurationError(f"recipe {recipe.name!r} reads no source {name!r}; it reads: {known}")
    check_inputs(recipe, request.sources)
    configs = read_configs(_config_json(request.model), request.components)
    vision = parse_vision_config(configs.records["vision"]) if "vision" in configs.records else None
    resources = read_resources(request.model, request.components, configs.text.vocab_size, vision, request.resources)
    has = checkpoints["base"].__contains__
    sources = text_sources(configs.text, configs.prefix, has)
    own = [configs.prefix] if configs.text.tie_word_embeddings else [configs.prefix, "lm_head."]
    if "mtp" in configs.records:
        sources |= mtp_sources(configs.text, has)
        own.append("mtp.")
    if vision is not None:
        sources |= vision_sources(vision, configs.text.hidden_size)
        own.append("model.visual.")
    check_sources(checkpoints["base"], sources, tuple(own))
    imported: dict[str, Source] = {}
    divisors: dict[str, float] = {}
    if ORIGIN in checkpoints:
        registry = component_registry(configs.records)
        imported = quantized_sources(checkpoints[ORIGIN], configs.text, registry, recipe)
        divisors = weight_divisors(checkpoints[ORIGIN], imported)
    constants: dict[str, Array] = {}
    if request.proposal is not None:
        token_ids = _proposal(request, configs, resources)
        sources["proposal/head"] = replace(sources["text/output_head"], rows=tuple(token_ids.tolist()))
        constants["proposal/token_ids"] = token_ids
    plan = plan_artifact(
        configs.records,
        recipe,
        {role: len(content) for role, content in resources.contents.items()},
        name=request.name,
        provenance={
            "converter": "ninfer-appliance",
            "recipe": recipe.name,
            **({"ranking": str(request.proposal.ranking)} if request.proposal and request.proposal.ranking else {}),
            "sources": {name: {"path": str(path)} for name, path in {"base": request.model, **request.sources}.items()},
        },
        proposal_rows=len(constants["proposal/token_ids"]) if constants else None,
        divisors=divisors,
    )
    importance = NO_IMPORTANCE
    if "imatrix" in request.sources:
        importance = ImportanceMatrix.read(request.sources["imatrix"])
        importance.check([parameter for parent in plan.parents for parameter in parent.parameters])
    return Prepared(configs, resources, plan, sources | imported, importance, constants)


def _proposal(request: Request, configs: ModelConfigs, resources: Resources) -> TokenIds:
    proposal = request.proposal
    assert proposal is not None
    if "mtp" not in configs.records:
        raise ConfigurationError("a proposal head serves a component that drafts; add mtp to the components")
    if (proposal.ranking is None) == (proposal.ids_from is None):
        raise ConfigurationError("a proposal head needs either --ranking FILE or --proposal-ids FROM.ninfer")
    if proposal.ids_from is not None:
        return read_token_ids(proposal.ids_from, resources.token_count)
    assert proposal.ranking is not None
    counts = read_ranking(proposal.ranking, configs.text.vocab_size)
    return rank_tokens(counts, resources.token_count, resources.special_ids, proposal.rows)


def _config_json(model: Path) -> dict[str, Any]:
    path = model / "config.json"
    try:
        return parse_json_object(path.read_bytes())
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing; name a checkpoint folder") from None
    except ValueError as error:
        raise CheckpointError(f"{path} {error}") from None
