"""Everything about an artifact that can be checked without its source checkpoint (spec/artifact.md §5.6)."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from msgspec import UNSET

from engine.artifact.directory import IndexedProposal, Resource
from engine.artifact.inventory import COMPANIONS
from engine.artifact.reader import Artifact
from engine.artifact.vocabulary import TOKENIZER, TOKENIZER_CONFIG, token_bytes
from engine.artifact.words import check_words
from engine.exits import ArtifactError

CHUNK_BYTES = 8 << 20

# Resources as the checkpoints have them (§4.10).
_ORIGINALS = {
    "5f9e4d4901a92b997e463c1f46055088b6cca5ca61a6522d1b9f64c4bb81cb42": "Qwen3.6",
    "0997f410c57a1f4e53b09e4be8f4a172d90edd9564368fb0847030937229b9f3": "Qwen3.8",
    "5186f0defcd7f232382c7f0aebcd2252d073bb921ab240e407b7ae8745d2b29b": "Qwen3.6",
    "b11349aafa7cdc6a320767cf7ceb29ed82f7eda5d65e8e0819e76f0ce947bf27": "Qwen3.8",
    "e84f32a23fdda27689f868aa4a1a5621f41133e51a48d7f3efcbea2839574259": "Qwen3.6",
    "c3cf9e34abf4f9e36c2d72165aa9c132d3e2a725b6c2586aaa3a8af9d7a81041": "Qwen3.8",
    "e70c136c1b78ddc1fb0905bac8e733a4dc448d4f852a5dd75143fffc70be550e": "Qwen3.6 and Qwen3.8",
    "27225450ac9c6529872ee1924fcb0962ff5634834f817040f444118116f4e516": "Qwen3.6 and Qwen3.8",
    "7768af27c1fafa9cc9011c1dc20067e03f8915e03b63504550e11d5066986d13": "Qwen3.6 and Qwen3.8",
}


class ExpectedParameter(Protocol):
    """What verification wants to know about a parameter; `engine.artifact.parameters.Parameter` is one."""

    @property
    def name(self) -> str:
        """Logical name."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Logical shape."""
        ...

    @property
    def direct(self) -> str:
        """The direct format it has unless it is quantised."""
        ...

    @property
    def inputs(self) -> tuple[str, ...]:
        """The input of each of its uses."""
        ...

    @property
    def quantizable(self) -> bool:
        """Whether formats other than `direct` are allowed."""
        ...


@dataclass(frozen=True)
class Pin:
    """What the entry file is claimed to be."""

    bytes: int | None = None
    sha256: str | None = None


@dataclass
class Report:
    """The outcome: an artifact is good when there are no problems. Notes are for a reader, not for a decision."""

    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    sha256: str | None = None

    @property
    def good(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


Progress = Callable[[str, int, int], None]
"""Called with what is being read, bytes done and bytes in all."""


def verify(
    artifact: Artifact,
    *,
    inventory: Iterable[ExpectedParameter] | None = None,
    pin: Pin | None = None,
    progress: Progress = lambda what, done, total: None,
) -> Report:
    """Check an open artifact: files, geometry, words, parameters, resources and, with a pin, identity.

    `inventory` lists the parameters that must be there; without one, neither coverage nor the presence of a tokenizer
    is checked. Memory is bounded by blocks of a few MB.
    """
    report = Report()
    if not _files(artifact, report):
        # Every object in a missing file would only say so again.
        return report
    total = sum(item.bytes for item in artifact.directory.objects.values())
    entry_bytes = artifact.payload.file(0).bytes
    hashed = entry_bytes if pin is not None and pin.sha256 is not None else 0
    done = 0

    def advance(what: str, size: int) -> None:
        nonlocal done
        done += size
        progress(what, done, total + hashed)

    if pin is not None:
        _identity(artifact, pin, report, lambda size: advance("SHA-256", size))
    for item in artifact.directory.objects.values():
        if isinstance(item, Resource):
            advance("resources", item.bytes)
        else:
            _tensor(artifact, item.id, report, lambda size: advance("tensors", size))
    _components(artifact, report)
    _resources(artifact, report)
    if inventory is not None:
        _parameters(artifact, inventory, report)
    _auxiliaries(artifact, report)
    _proposal(artifact, _token_count(artifact, report, needed=inventory is not None), report)
    # Several checks may meet the same fault, for example a configuration that cannot be read.
    report.problems = list(dict.fromkeys(report.problems))
    return report


@contextmanager
def _noting(artifact: Artifact, report: Report) -> Iterator[None]:
    try:
        yield
    except ArtifactError as error:
        report.problems.append(str(error).removeprefix(f"{artifact.path}: "))


def _files(artifact: Artifact, report: Report) -> bool:
    for index in range(len(artifact.directory.files)):
        with _noting(artifact, report):
            artifact.payload.file(index)
    return report.good


def _identity(artifact: Artifact, pin: Pin, report: Report, advance: Callable[[int], None]) -> None:
    file = artifact.payload.file(0)
    if pin.bytes is not None and pin.bytes != file.bytes:
        report.problems.append(f"size: the file has {file.bytes} bytes, the pin says {pin.bytes}")
    if pin.sha256 is None:
        return
    digest = hashlib.sha256()
    for offset in range(0, file.bytes, CHUNK_BYTES):
        data = file.read(offset, min(CHUNK_BYTES, file.bytes - offset))
        digest.update(data)
        advance(len(data))
    report.sha256 = digest.hexdigest()
    if report.sha256 != pin.sha256.lower():
        report.problems.append(f"SHA-256: the file has {report.sha256}, the pin says {pin.sha256.lower()}")


def _tensor(artifact: Artifact, id: str, report: Report, advance: Callable[[int], None]) -> None:
    with _noting(artifact, report):
        tensor = artifact.tensor(id)
        faults = list(check_words(tensor, advance))
        report.problems += [f"object {id!r} ({tensor.format.name}): {fault}" for fault in faults]


def _components(artifact: Artifact, report: Report) -> None:
    for name, component in artifact.directory.components.items():
        if name != "text" and name not in COMPANIONS:
            report.notes.append(f"component {name!r} is not known to this version and was not checked")
        elif name != "text" and component.target != "text":
            target = None if component.target is UNSET else component.target
            report.problems.append(f"component {name!r}: its target is {target!r}, not 'text'")
    with _noting(artifact, report):
        _ = artifact.text_config


def _resources(artifact: Artifact, report: Report) -> None:
    for name, component in artifact.directory.components.items():
        for role in component.resources:
            where = f"resource {name}/{role}"
            with _noting(artifact, report):
                data = artifact.resource(name, role)
                try:
                    text = data.decode()
                    if role.endswith(".json") and not isinstance(json.loads(text), dict):
                        report.problems.append(f"{where}: is not a JSON object")
                except (ValueError, RecursionError) as error:
                    kind = "JSON in UTF-8" if role.endswith(".json") else "UTF-8"
                    report.problems.append(f"{where}: is not {kind}: {error}")
                digest = hashlib.sha256(data).hexdigest()
                origin = f", as in the {_ORIGINALS[digest]} checkpoint" if digest in _ORIGINALS else ""
                report.notes.append(f"{where}: {len(data)} bytes, SHA-256 {digest}{origin}")


def _parameters(artifact: Artifact, inventory: Iterable[ExpectedParameter], report: Report) -> None:
    known = set()
    for expected in inventory:
        known.add(expected.name)
        binding = artifact.directory.bindings.get(expected.name)
        if binding is None:
            report.problems.append(f"parameter {expected.name!r} is missing")
            continue
        shape, wanted = artifact.shape(expected.name), expected.shape
        elements = int(np.prod(wanted, dtype=object))
        if (binding.whole and shape != wanted) or binding.elements != elements:
            report.problems.append(f"parameter {expected.name!r}: has shape {list(shape)}, needs {list(wanted)}")
        for format in dict.fromkeys(artifact.formats(expected.name)):
            if format != expected.direct and not expected.quantizable:
                report.problems.append(f"parameter {expected.name!r}: is {format!r}, must be {expected.direct!r}")
        _check_uses(artifact, expected, report)
    extra = [name for name in artifact.directory.bindings if name not in known]
    if extra:
        report.notes.append(f"{len(extra)} parameters belong to no component known here, first {extra[0]!r}")


def _check_uses(artifact: Artifact, expected: ExpectedParameter, report: Report) -> None:
    uses = {use.input: use for use in artifact.uses(expected.name)}
    for name in expected.inputs:
        if name not in uses:
            report.problems.append(f"parameter {expected.name!r}: has no use for input {name!r}")
        elif uses[name].activation_policy is None:
            report.problems.append(f"parameter {expected.name!r}: its use for input {name!r} has no activation policy")


def _auxiliaries(artifact: Artifact, report: Report) -> None:
    for use in artifact.directory.uses:
        for role, binding in use.auxiliaries.items():
            where = f"use of {use.parameter!r} for {use.input!r}: auxiliary {role!r}"
            if role != "activation_input_divisor":
                report.problems.append(f"{where} is not known; known: activation_input_divisor")
                continue
            with _noting(artifact, report):
                tensors = [part.tensor for part in artifact.encoded_binding(binding)]
                if len(tensors) != 1 or tensors[0].shape or tensors[0].format.name != "fp32":
                    report.problems.append(f"{where} is not one fp32 scalar")
                elif not 0 < (value := float(artifact.read(binding)[0])) < np.inf:
                    report.problems.append(f"{where} is {value!r}, not finite and positive")


def _token_count(artifact: Artifact, report: Report, *, needed: bool) -> int | None:
    if not needed and not {TOKENIZER, TOKENIZER_CONFIG} <= artifact.directory.components["text"].resources.keys():
        return None
    count = None
    with _noting(artifact, report):
        count = len(token_bytes(artifact.resource("text", TOKENIZER), artifact.resource("text", TOKENIZER_CONFIG)))
        if count > artifact.text_config.vocab_size:
            rows = artifact.text_config.vocab_size
            report.problems.append(f"the tokenizer has {count} tokens, the embedding only {rows} rows")
    return count


def _proposal(artifact: Artifact, token_count: int | None, report: Report) -> None:
    proposal = artifact.directory.components["text"].proposal
    if not isinstance(proposal, IndexedProposal) or "proposal/token_ids" not in artifact.directory.bindings:
        return
    with _noting(artifact, report):
        ids = artifact.values("proposal/token_ids")
        if len(np.unique(ids)) != ids.size:
            report.problems.append("proposal/token_ids: a token appears twice")
        limit = artifact.text_config.vocab_size if token_count is None else token_count
        if ids.min() < 0 or ids.max() >= limit:
            report.problems.append(f"proposal/token_ids: ids {ids.min()} to {ids.max()} leave 0..{limit - 1}")
