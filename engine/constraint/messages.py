"""What crosses the socket between a process and its constraint worker: little-endian u32 length, then msgpack."""

import struct

import msgspec

from engine.constraint.errors import Code

HEADER_BYTES = 64  # of the shared memory: three int64, the numbers of the jobs under way; 0 is none
MARKERS = 3  # the mask being computed, and two compilations
COMPILING = MARKERS - 1

_LENGTH = struct.Struct("<I")


class Setup(msgspec.Struct, tag="setup", frozen=True, kw_only=True):
    """First message. `special` ids never match text; `end` is any id that stands for the end of the answer.

    Masks are int32 `[lanes, columns, ceil(len(tokens) / 32)]` behind the header of the shared memory.
    """

    tokens: list[bytes]
    special: list[int]
    end: int
    lanes: int = 0
    columns: int = 1
    cpu_seconds: float
    cache_bytes: int


class Check(msgspec.Struct, tag="check", frozen=True, kw_only=True):
    """Compile and forget. Answered by `Checked`."""

    number: int
    grammar: bytes


class Open(msgspec.Struct, tag="open", frozen=True, kw_only=True):
    """A lane begins. `rest` and then `tokens` have come already. Answered by `Masked`, once it is compiled."""

    number: int
    slot: int
    grammar: bytes
    stops: list[int]
    rest: bytes = b""
    tokens: list[int] = []


class Advance(msgspec.Struct, tag="advance", frozen=True, kw_only=True):
    """Tokens came; masks are wanted for the next position and after each of `drafts`. Answered by `Masked`."""

    number: int
    rest: bytes = b""
    tokens: list[int] = []
    drafts: list[int] = []


class Close(msgspec.Struct, tag="close", frozen=True, kw_only=True):
    """A lane ends. No answer."""

    number: int


class Ready(msgspec.Struct, tag="ready", frozen=True, kw_only=True):
    """The vocabulary is read."""

    seconds: float


class Began(msgspec.Struct, tag="began", frozen=True, kw_only=True):
    """A compilation has left the queue; its time runs from now."""

    number: int


class Checked(msgspec.Struct, tag="checked", frozen=True, kw_only=True):
    """Whether the grammar compiles; `message` is the library's."""

    number: int
    message: str = ""
    code: Code | None = None


class Masked(msgspec.Struct, tag="masked", frozen=True, kw_only=True):
    """The masks of a lane are written, for `columns` positions; or why not. Seconds are of this message alone.

    `complete`: the answer could end here.
    """

    number: int
    columns: int = 0
    complete: bool = False
    message: str = ""
    code: Code | None = None
    cache: str = ""  # of the first one: hit, built or waited
    prepare_seconds: float = 0.0
    matcher_seconds: float = 0.0
    mask_seconds: float = 0.0


ToWorker = Setup | Check | Open | Advance | Close
FromWorker = Ready | Began | Checked | Masked

_encoder = msgspec.msgpack.Encoder()
_to_worker = msgspec.msgpack.Decoder(ToWorker)
_from_worker = msgspec.msgpack.Decoder(FromWorker)


def frame(message: ToWorker | FromWorker) -> bytes:
    """One whole frame."""
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


def to_worker(body: bytes) -> ToWorker:
    """Raises msgspec.MsgspecError: not such a message."""
    return _to_worker.decode(body)


def from_worker(body: bytes) -> FromWorker:
    """Raises msgspec.MsgspecError: not such a message."""
    return _from_worker.decode(body)


class Frames:
    """Cuts a byte stream into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def push(self, data: bytes) -> list[bytes]:
        """The frames that `data` completes."""
        self._buffer += data
        found: list[bytes] = []
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if len(self._buffer) < _LENGTH.size + length:
                break
            found.append(bytes(self._buffer[_LENGTH.size : _LENGTH.size + length]))
            del self._buffer[: _LENGTH.size + length]
        return found
