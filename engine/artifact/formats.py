"""The numeric formats: code domain, grouping and scale of each name (spec/artifact.md §2).

Sizes need the standard library only; the element type of direct words asks for numpy when it is first wanted.

A format says what an encoded weight means. Where its bytes lie is the layout's business (`layouts.py`), and which
of several legal encodings is chosen is the encoder's (`grouped.py`).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from engine.exits import ArtifactError

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Direct:
    """Plain little-endian words; every word is legal and is preserved bit for bit (§2.1)."""

    name: str
    word_bytes: int

    layout: ClassVar = "contiguous_le_v1"

    @property
    def dtype(self) -> "np.dtype[np.generic]":
        """The element type."""
        import ml_dtypes  # noqa: PLC0415
        import numpy as np  # noqa: PLC0415

        types: dict[str, np.dtype[np.generic]] = {
            "bf16": np.dtype(ml_dtypes.bfloat16),
            "fp32": np.dtype("<f4"),
            "int32": np.dtype("<i4"),
        }
        return types[self.name]

    @property
    def bits(self) -> float:
        """Stored bits a weight."""
        return 8.0 * self.word_bytes


@dataclass(frozen=True)
class Grouped:
    """Signed integer codes in groups of `group` input columns, one float16 multiplier a group (§2.2)."""

    name: str
    code_bits: int
    group: int

    layout: ClassVar = "row_split_k128_v1"

    @property
    def bits(self) -> float:
        """Stored bits a weight, without row padding."""
        return self.code_bits + 16 / self.group

    @property
    def minimum(self) -> int:
        """Smallest legal code. The 8-bit format leaves -128 unused."""
        return -127 if self.code_bits == 8 else -(1 << self.code_bits - 1)

    @property
    def maximum(self) -> int:
        """Largest legal code."""
        return (1 << self.code_bits - 1) - 1

    @property
    def base_bytes(self) -> int:
        """Bytes a group in the base plane: nibbles, or whole codes for the 8-bit format."""
        return self.group if self.code_bits == 8 else self.group // 2

    @property
    def high_bytes(self) -> int:
        """Bytes a group in the plane of bits 4 and 5; 0 where the base plane holds the whole code."""
        return self.group * (self.code_bits - 4) // 8 if self.code_bits in (5, 6) else 0


@dataclass(frozen=True)
class BlockFloat:
    """E2M1 codes, one E4M3FN scale a group of input columns, one float32 divisor a matrix (§2.3)."""

    name: str
    group: int

    layout: ClassVar = "block_scale_k16_m128x4_v1"

    @property
    def bits(self) -> float:
        """Stored bits a weight."""
        return 4 + 8 / self.group


@dataclass(frozen=True)
class RowFloat:
    """E4M3FN codes and one bfloat16 multiplier a row (§2.4)."""

    name: str

    layout: ClassVar = "row_scale_v1"
    bits: ClassVar = 8.0


@dataclass(frozen=True)
class GgmlBlock:
    """A ggml block of `block` weights in `block_bytes` bytes: sizes are known, values are not decoded (§2.5)."""

    name: str
    block: int
    block_bytes: int

    layout: ClassVar = "ggml_blocks_v1"

    @property
    def bits(self) -> float:
        """Stored bits a weight."""
        return 8 * self.block_bytes / self.block


@dataclass(frozen=True)
class GgmlRecord:
    """One expert a record: gate, up and down matrices of ggml blocks (§3.5). Values are not decoded."""

    name: str
    gate: GgmlBlock
    down: GgmlBlock

    layout: ClassVar = "ggml_expert_record_v1"

    @property
    def bits(self) -> float:
        """Stored bits a weight, over two gate-sized matrices and one down matrix."""
        return (2 * self.gate.bits + self.down.bits) / 3


Format: TypeAlias = Direct | Grouped | BlockFloat | RowFloat | GgmlBlock | GgmlRecord

BF16 = Direct("bf16", 2)
FP32 = Direct("fp32", 4)
INT32 = Direct("int32", 4)
Q4 = Grouped("q4_g64_fp16", 4, 64)
Q5 = Grouped("q5_g64_fp16", 5, 64)
Q6 = Grouped("q6_g64_fp16", 6, 64)
Q8 = Grouped("q8_g32_fp16", 8, 32)
NVFP4 = BlockFloat("nvfp4", 16)
FP8_ROW = RowFloat("fp8_e4m3fn_row_bf16")

_GGML = {
    block.name: block
    for block in (
        GgmlBlock("ggml_q8_0", 32, 34),
        GgmlBlock("ggml_q6_k", 256, 210),
        GgmlBlock("ggml_iq2_xxs", 256, 66),
        GgmlBlock("ggml_iq4_nl", 32, 18),
        GgmlBlock("ggml_iq3_s", 256, 110),
        GgmlBlock("ggml_iq2_s", 256, 82),
        GgmlBlock("ggml_iq4_xs", 256, 136),
        GgmlBlock("ggml_iq1_m", 256, 56),
        GgmlBlock("ggml_q2_0", 64, 18),
    )
}
_RECORDS = (
    GgmlRecord("ggml_rec_iq2_s_q2_0", _GGML["ggml_iq2_s"], _GGML["ggml_q2_0"]),
    GgmlRecord("ggml_rec_iq2_xxs_q2_0", _GGML["ggml_iq2_xxs"], _GGML["ggml_q2_0"]),
    GgmlRecord("ggml_rec_iq1_m_q2_0", _GGML["ggml_iq1_m"], _GGML["ggml_q2_0"]),
)

GROUPED: tuple[Grouped, ...] = (Q4, Q5, Q6, Q8)
_ALL: tuple[Format, ...] = (BF16, FP32, INT32, *GROUPED, NVFP4, FP8_ROW, *_GGML.values(), *_RECORDS)
FORMATS: dict[str, Format] = {format.name: format for format in _ALL}

OLD_NAMES = {
    "BF16": "bf16", "FP32": "fp32", "I32": "int32", "Q4G64_F16S": "q4_g64_fp16", "Q5G64_F16S": "q5_g64_fp16",
    "Q6G64_F16S": "q6_g64_fp16", "W8G32_F16S": "q8_g32_fp16", "NVFP4": "nvfp4",
    "FP8_E4M3FN_ROW_BF16S": "fp8_e4m3fn_row_bf16",
}  # fmt: skip
"""Spellings of the second container revision, which people still write."""


def find_format(name: str) -> Format:
    """The format registered as `name`.

    Raises:
        ArtifactError: this version does not know the name.
    """
    if name in FORMATS:
        return FORMATS[name]
    hint = f"; version 3 spells it {OLD_NAMES[name]!r}" if name in OLD_NAMES else ""
    raise ArtifactError(f"unknown format {name!r}{hint}; known formats: {', '.join(FORMATS)}")


def grouped_format(name: str) -> Grouped:
    """The grouped integer format registered as `name`.

    Raises:
        ArtifactError: the name is unknown, or is not a grouped integer format.
    """
    format = find_format(name)
    if not isinstance(format, Grouped):
        raise ArtifactError(f"format {name!r} is not grouped integers; those are {', '.join(f.name for f in GROUPED)}")
    return format
