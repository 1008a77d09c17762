"""The KV cache formats as arithmetic: bits a value and bytes a scale (spec/kv-formats.md §2)."""

from dataclasses import dataclass

from engine.exits import ConfigurationError


@dataclass(frozen=True, slots=True)
class Plane:
    """Keys or values. `group` values share a scale of `scale_bytes`; 0 means one scale for the whole row."""

    bits: int
    group: int = 0
    scale_bytes: int = 0

    def row_bytes(self, width: int) -> int:
        """Bytes of one row of `width` values: one token, one KV head, one layer."""
        groups = -(-width // self.group) if self.group else 1
        return -(-width * self.bits // 8) + groups * self.scale_bytes


@dataclass(frozen=True, slots=True)
class KvFormat:
    """One KV cache format."""

    name: str
    keys: Plane
    values: Plane

    def row_bytes(self, width: int) -> int:
        """Bytes of the key row and the value row of one token, KV head and layer."""
        return self.keys.row_bytes(width) + self.values.row_bytes(width)


_INT8 = Plane(8, group=64, scale_bytes=2)
_FP8 = Plane(8, scale_bytes=2)
_INT4 = Plane(4, group=32, scale_bytes=2)
_NVFP4 = Plane(4, group=16, scale_bytes=1)

FORMATS: dict[str, KvFormat] = {
    form.name: form
    for form in (
        KvFormat("bf16", Plane(16), Plane(16)),
        KvFormat("int8", _INT8, _INT8),
        KvFormat("fp8", _FP8, _FP8),
        KvFormat("rk8v4", _INT8, _INT4),
        KvFormat("k8v4", _FP8, _NVFP4),
        KvFormat("nvfp4", _NVFP4, _NVFP4),
        KvFormat("rk4v4", Plane(4, group=64, scale_bytes=2), _INT4),
    )
}


def kv_format(name: str) -> KvFormat:
    """The format called `name`.

    Raises:
        ConfigurationError: no such format.
    """
    if name not in FORMATS:
        raise ConfigurationError(f"KV format {name!r} is unknown; known: {', '.join(FORMATS)}")
    return FORMATS[name]
