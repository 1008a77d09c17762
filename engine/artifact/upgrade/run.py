"""The upgrade itself: a new directory in front of the old payload, byte for byte (spec/artifact.md §1.6)."""

import errno
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.artifact.file_set import FileSet
from engine.artifact.layouts import TENSOR_ALIGNMENT, align_up
from engine.artifact.planning import FILE_LIMIT, PlannedObject, ResourceSpec, plan_files
from engine.artifact.unfinished import refuse_existing
from engine.artifact.upgrade.derive import TEMPLATE, derive
from engine.artifact.upgrade.shapes import OFFICIAL, Shape, find_shape
from engine.artifact.upgrade.version2 import OldArtifact, read_old
from engine.exits import ArtifactError, ConfigurationError

BLOCK = 64 << 20
Progress = Callable[[int, int], None]
"""Called with payload bytes done and in all."""


@dataclass(frozen=True)
class Outcome:
    """What was made."""

    out: Path
    artifact_id: str
    model_id: str
    payload_bytes: int
    parameters: int
    files: int


def upgrade(
    source: Path,
    out: Path,
    template: bytes | None = None,
    *,
    shapes: Sequence[Shape] = OFFICIAL,
    limit: int = FILE_LIMIT,
    progress: Progress = lambda done, total: None,
) -> Outcome:
    """Write the version 3 form of the version 2 file `source` to `out`. The source is only read.

    Every payload byte keeps its place in the payload. `template` is a chat template to use instead of the file's own,
    whose bytes stay where they are. The output appears under its name only when it is complete; holes of the source
    stay holes.

    Raises:
        ArtifactError: the source is not one of `shapes`, or the output exists.
        ConfigurationError: the template is empty or not UTF-8.
        NInferError, OSError: the disk has too little room, or fails.
    """
    if template is not None:
        _check_template(template)
    if out.exists() and out.samefile(source):
        raise ArtifactError(f"{out} is the file to be upgraded; name another output")
    refuse_existing(out)
    descriptor = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            old = read_old(descriptor)
            shape = find_shape(old.model_id, old.weights_id, len(old.objects), shapes)
            directory = derive(old, shape)
        except ArtifactError as error:
            raise ArtifactError(f"{source}: {error}") from None
        objects, template_offset = _objects(old, template)
        payload = old.payload_bytes if template is None else template_offset + len(template)
        directory = {"components": directory.pop("components"), "objects": [o.record() for o in objects], **directory}
        text, files = plan_files(directory, payload, out.name, limit)
        artifact_id = uuid.uuid4().bytes
        target = FileSet(out, text, files, artifact_id)
        try:
            for begin, end in _extents(descriptor, old.payload_start, old.payload_bytes):
                target.copy(begin, descriptor, old.payload_start + begin, end - begin)
                progress(end, payload)
            if template is not None:
                target.write(template_offset, template)
            progress(payload, payload)
            target.commit()
        finally:
            target.abort()
    finally:
        os.close(descriptor)
    return Outcome(out, artifact_id.hex(), old.model_id, payload, len(directory["bindings"]), len(files))


def _objects(old: OldArtifact, template: bytes | None) -> tuple[list[PlannedObject], int]:
    """Objects in payload order, and where a new template goes: behind everything, as the last of them."""
    offset = align_up(old.payload_bytes, TENSOR_ALIGNMENT)
    if template is None:
        return list(old.objects.values()), offset
    kept = [item for name, item in old.objects.items() if name != TEMPLATE]
    return [*kept, PlannedObject(ResourceSpec(TEMPLATE, len(template)), offset, len(template))], offset


def _check_template(template: bytes) -> None:
    try:
        text = template.decode()
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"the template is not UTF-8: byte {error.start}") from None
    if not text.strip():
        raise ConfigurationError("the template is empty")


def _extents(descriptor: int, start: int, length: int) -> Iterator[tuple[int, int]]:
    """Ranges of the payload that hold data, of at most `BLOCK` bytes; what lies between them is zero."""
    position, end = start, start + length
    while position < end:
        try:
            begin = os.lseek(descriptor, position, os.SEEK_DATA)
            stop = os.lseek(descriptor, begin, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return  # nothing but a hole is left
            begin, stop = position, end  # a filesystem that knows no holes
        begin, stop = max(begin, position), min(stop, end)
        for first in range(begin, stop, BLOCK):
            yield first - start, min(first + BLOCK, stop) - start
        position = max(stop, position + 1)
