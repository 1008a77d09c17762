"""The 32-byte headers of entry and continuation files (spec/artifact.md §1.1)."""

from dataclasses import dataclass

from engine.artifact.layouts import align_up
from engine.exits import ArtifactError

HEADER_BYTES = 32
PAGE = 4096

ENTRY_MAGIC = b"NINFER\0\x03"
PART_MAGIC = b"NINPRT\0\x03"

MAX_JSON_BYTES = 64 << 20
"""Largest directory read. The largest published one has 7.4 MB."""


@dataclass(frozen=True)
class EntryHeader:
    """Header of the file a user names."""

    json_bytes: int
    artifact_id: bytes

    @property
    def payload_start(self) -> int:
        """File offset of the first payload byte."""
        return align_up(HEADER_BYTES + self.json_bytes, PAGE)

    def encode(self) -> bytes:
        """The 32 bytes."""
        return ENTRY_MAGIC + self.json_bytes.to_bytes(8, "little") + self.artifact_id


@dataclass(frozen=True)
class PartHeader:
    """Header of a continuation file, whose payload starts at offset 4096."""

    part_index: int
    artifact_id: bytes

    def encode(self) -> bytes:
        """The 32 bytes."""
        return PART_MAGIC + self.part_index.to_bytes(8, "little") + self.artifact_id


def parse_entry_header(data: bytes, file_bytes: int) -> EntryHeader:
    """Read the header from the first bytes of an entry file that is `file_bytes` long.

    Raises:
        ArtifactError: another kind or version of file, or a directory length that cannot be.
    """
    if len(data) < HEADER_BYTES and not data.startswith(ENTRY_MAGIC[:7]):
        raise ArtifactError(f"the file has {file_bytes} bytes, less than the header of an artifact ({HEADER_BYTES})")
    magic = data[:8]
    if magic[:7] == ENTRY_MAGIC[:7] and magic != ENTRY_MAGIC:
        version = magic[7] if len(magic) == 8 else None
        if version == 2:
            raise ArtifactError(
                "the file is an artifact of version 2; this program reads version 3: "
                "make one with `ninfer-artifact upgrade IN OUT`"
            )
        if version == 1:
            raise ArtifactError(
                "the file is an artifact of version 1; this program reads version 3, and `ninfer-artifact upgrade` "
                "starts from version 2: download the model again, or convert it from its checkpoint"
            )
        raise ArtifactError(f"the file is an artifact of version {version}; this program reads version 3")
    if magic == PART_MAGIC:
        raise ArtifactError("the file is a continuation of an artifact; name the entry file, without .part-NNNN")
    if magic != ENTRY_MAGIC:
        raise ArtifactError(f"the file is not an artifact: it starts with {magic.hex(' ')}, not {ENTRY_MAGIC.hex(' ')}")
    if len(data) < HEADER_BYTES:
        raise ArtifactError(f"the file has {file_bytes} bytes, less than the header of an artifact ({HEADER_BYTES})")
    json_bytes = int.from_bytes(data[8:16], "little")
    if not 0 < json_bytes <= file_bytes - HEADER_BYTES:
        raise ArtifactError(f"the directory is said to have {json_bytes} bytes; the file has {file_bytes} in all")
    if json_bytes > MAX_JSON_BYTES:
        raise ArtifactError(f"the directory has {json_bytes} bytes; this program reads at most {MAX_JSON_BYTES}")
    return EntryHeader(json_bytes, data[16:32])


def check_part_header(data: bytes, expected: PartHeader) -> None:
    """Compare the first bytes of a continuation file with what the entry file asks for.

    Raises:
        ArtifactError: another kind of file, a part of another artifact, or another part.
    """
    if len(data) < HEADER_BYTES or data[:8] != PART_MAGIC:
        raise ArtifactError(f"is not a continuation file: it starts with {data[:8].hex(' ')}")
    artifact_id, index = data[16:32], int.from_bytes(data[8:16], "little")
    if artifact_id != expected.artifact_id:
        raise ArtifactError(f"belongs to artifact {artifact_id.hex()}, not to {expected.artifact_id.hex()}")
    if index != expected.part_index:
        raise ArtifactError(f"says it is part {index}, not part {expected.part_index}")
