"""Files an artifact carries beside its weights: tokenizer, template, processor settings (spec/artifact.md §4.10)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.artifact.companions import VisionConfig
from engine.artifact.convert.planner import RESOURCE_ROLES
from engine.artifact.convert.sources import CheckpointError, parse_json_object
from engine.artifact.vocabulary import TOKENIZER, TOKENIZER_CONFIG, parse_vocabulary
from engine.exits import ArtifactError, ConfigurationError


@dataclass(frozen=True)
class Resources:
    """Contents by role, in file order, the number of token ids, and the ids of special tokens."""

    contents: dict[str, bytes]
    token_count: int
    special_ids: frozenset[int]


def read_resources(
    folder: Path, components: Sequence[str], vocab_size: int, vision: VisionConfig | None, overrides: Mapping[str, Path]
) -> Resources:
    """Read and check every resource of `components` from `folder`, or from the path `overrides` gives for its role.

    Raises:
        ConfigurationError: an override for an unknown role, or for a component that is not converted.
        CheckpointError: a file is missing, empty, not what its name says, or contradicts the model.
    """
    roles = [role for role, component in RESOURCE_ROLES.items() if component in components]
    for role in overrides:
        if role not in roles:
            raise ConfigurationError(
                f"resource {role!r} has no place here; the chosen components take {', '.join(roles)}"
            )
    contents: dict[str, bytes] = {}
    parsed: dict[str, dict[str, Any]] = {}
    for role in roles:
        path = overrides.get(role, folder / role)
        contents[role] = _read(role, path)
        if role.endswith(".json"):
            try:
                parsed[role] = parse_json_object(contents[role])
            except ValueError as error:
                raise CheckpointError(f"{path} {error}") from None
    if vision is not None:
        for role in ("preprocessor_config.json", "video_preprocessor_config.json"):
            _check_processor(role, parsed[role], vision)
    try:
        vocabulary = parse_vocabulary(contents[TOKENIZER], contents[TOKENIZER_CONFIG])
    except ArtifactError as error:
        raise CheckpointError(str(error)) from None
    tokens = len(vocabulary.tokens)
    if tokens > vocab_size:
        raise CheckpointError(f"the tokenizer defines {tokens} ids; the embedding has {vocab_size} rows")
    return Resources(contents, tokens, frozenset(token.id for token in vocabulary.added if token.special))


def _read(role: str, path: Path) -> bytes:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing; name another file with --resource {role}=PATH") from None
    if not content:
        raise CheckpointError(f"{path} is empty; name another file with --resource {role}=PATH")
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path} is not UTF-8: byte {error.start}") from None
    return content


def _check_processor(role: str, processor: Mapping[str, Any], vision: VisionConfig) -> None:
    expected = {
        "patch_size": vision.patch_size,
        "temporal_patch_size": vision.temporal_patch_size,
        "merge_size": vision.spatial_merge_size,
    }
    for key, value in expected.items():
        if processor.get(key) != value:
            raise CheckpointError(f"{role}: {key} is {processor.get(key)!r}; the vision config has {value}")
