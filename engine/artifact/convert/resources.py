"""Files an artifact carries beside its weights: tokenizer, template, processor settings (spec/artifact.md §4.10)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.artifact.companions import VisionConfig
from engine.artifact.convert.planner import RESOURCE_ROLES
from engine.artifact.convert.sources import CheckpointError, parse_json_object
from engine.exits import ConfigurationError


@dataclass(frozen=True)
class Resources:
    """Contents by role, in file order, and the number of token ids the tokenizer defines."""

    contents: dict[str, bytes]
    token_count: int


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
    tokens = count_tokens(parsed["tokenizer.json"], parsed["tokenizer_config.json"])
    if tokens > vocab_size:
        raise CheckpointError(f"the tokenizer defines {tokens} ids; the embedding has {vocab_size} rows")
    return Resources(contents, tokens)


def count_tokens(tokenizer: Mapping[str, Any], tokenizer_config: Mapping[str, Any]) -> int:
    """Token ids of the union of vocabulary and added tokens, which must be exactly 0..n-1.

    Raises:
        CheckpointError: an id or a token is defined twice differently, or an id is skipped.
    """
    model = tokenizer.get("model")
    vocabulary = model.get("vocab") if isinstance(model, Mapping) else None
    if not isinstance(vocabulary, Mapping):
        raise CheckpointError("tokenizer.json: model.vocab is not an object of token to id")
    by_id: dict[int, str] = {}
    by_token: dict[str, int] = {}

    def define(token: Any, number: Any, where: str) -> None:
        if type(number) is not int or number < 0 or not isinstance(token, str):
            raise CheckpointError(f"{where}: token {token!r} has id {number!r}")
        if by_id.setdefault(number, token) != token:
            raise CheckpointError(f"{where}: id {number} is {token!r}, and elsewhere {by_id[number]!r}")
        if by_token.setdefault(token, number) != number:
            raise CheckpointError(f"{where}: token {token!r} has id {number}, and elsewhere {by_token[token]}")

    for token, number in vocabulary.items():
        define(token, number, "tokenizer.json: model.vocab")
    try:
        for added in tokenizer.get("added_tokens") or ():
            define(added["content"], added["id"], "tokenizer.json: added_tokens")
        for number, added in (tokenizer_config.get("added_tokens_decoder") or {}).items():
            define(added["content"], int(number), "tokenizer_config.json: added_tokens_decoder")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"the added tokens of the tokenizer cannot be read: {error!r}") from None
    if not by_id:
        raise CheckpointError("tokenizer.json defines no token")
    count = max(by_id) + 1
    if count != len(by_id):
        gap = next(number for number in range(count) if number not in by_id)
        raise CheckpointError(f"the tokenizer skips id {gap}; ids must run from 0 to {count - 1} without a gap")
    return count


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
