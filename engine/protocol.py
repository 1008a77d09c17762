"""What crosses the Unix socket between `api` (or `controller`) and `engine`: typed messages and their framing.

A frame is a little-endian u32 length, a u8 count of file descriptors, and that many bytes of msgpack. Descriptors
(sealed memfds of uint8 pixels) ride on the first byte of the frame they belong to. Token ids are little-endian u32
bytes, because decoding hundreds of thousands of msgpack integers costs milliseconds. The engine speaks first, with
`Hello`.
"""

import asyncio
import os
import socket
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

VERSION = 2
MAX_FRAME_BYTES = 512 * 1024 * 1024
MAX_DESCRIPTORS = 64

# A boot phase, in order. `failed` is final.
Phase = Literal["fetch", "probe", "plan", "load", "reserve", "warm-up", "prove", "ready", "draining", "failed"]
Finish = Literal["stop_id", "stop_string", "length", "context", "cancelled", "error"]


class Message(msgspec.Struct, tag_field="type", frozen=True, kw_only=True):
    """Base of every message."""


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """Sampler settings after presets and overrides (spec/model.md §16). `top_k` 0 means 20."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 20
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0


class Media(msgspec.Struct, frozen=True, kw_only=True):
    """One image or video slice: its pixels are in the memfd with the same index."""

    digest: bytes
    kind: Literal["image", "video"]
    shape: tuple[int, ...]
    begin: int  # index of its first placeholder token


class Thinking(msgspec.Struct, frozen=True, kw_only=True):
    """The prompt ends inside a thought. `close` are the bytes that end it.

    When `budget` tokens have come and it is still open, the tokens `wrap_up` (little-endian u32) are inserted, which
    must end it. None lets it go on.
    """

    close: bytes
    budget: int | None = None
    wrap_up: bytes = b""


# Client → engine


class Submit(Message, tag="submit", frozen=True):
    """Ask for tokens. Answered by `Rejected`, or by `Progress` and `Tokens` until a lane reports a finish."""

    id: int
    token_ids: bytes
    sampling: Sampling
    max_tokens: int
    stop_ids: tuple[int, ...] = ()
    stop_strings: tuple[bytes, ...] = ()
    logprobs: int = 0
    thinking: Thinking | None = None
    deadline_seconds: float | None = None  # longest wait for a lane, from now
    cache_salt: bytes = b""
    checkpoints: tuple[int, ...] = ()
    session: str = ""
    constraint: bytes | None = None  # a grammar that the client has had compiled
    media: tuple[Media, ...] = ()


class Cancel(Message, tag="cancel", frozen=True):
    """Free the lane of request `id` within one round. Answered by a finish of `cancelled`."""

    id: int


class AskStatistics(Message, tag="ask_statistics", frozen=True):
    """Answered by `Statistics`."""


# Engine → client


class Hello(Message, tag="hello", frozen=True):
    """First message on every connection."""

    version: int
    fingerprint: str
    model: str


class Boot(Message, tag="boot", frozen=True):
    """Where the start is. Sent on connection and at each change; `done` of `total` counts `unit`s."""

    phase: Phase
    detail: str = ""
    done: int = 0
    total: int = 0
    unit: str = ""


class Limits(Message, tag="limits", frozen=True):
    """What was reserved. Sent once, just before the `ready` boot message (and on later connections)."""

    max_context: int
    kv_capacity: int
    lanes: int
    max_pending: int
    token_count: int
    ledger: dict[str, tuple[int, int]] = {}  # component → planned bytes, measured bytes


class Progress(Message, tag="progress", frozen=True):
    """Prefill of request `id`: `cached` tokens were reused, `processed` of `total` are in the cache."""

    id: int
    processed: int
    total: int
    cached: int = 0


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of one request, on the engine's monotonic clock."""

    queue: float = 0.0
    prefill: float = 0.0
    decode: float = 0.0
    prefill_tokens: int = 0
    cached_tokens: int = 0


class TokenLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """Log-probability of one sampled token and of the `Submit.logprobs` best ones."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class ConstraintReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a constraint came to and what it took. `complete`: the answer fits as it stands."""

    complete: bool = False
    cache: str = ""
    mask_positions: int = 0
    mask_upload_bytes: int = 0
    prepare_seconds: float = 0.0
    matcher_seconds: float = 0.0
    mask_seconds: float = 0.0


class LaneTokens(msgspec.Struct, frozen=True, kw_only=True):
    """What one lane gained in one round. The stop token or the tokens of a stop string are included."""

    id: int
    token_ids: bytes = b""
    finish: Finish | None = None
    stop: bytes = b""  # the matched stop string
    error: str = ""
    error_code: str = ""  # of an error that the client can understand, such as constraint_dead_end
    timings: Timings | None = None  # with the finish
    constraint: ConstraintReport | None = None  # with the finish of a request that has one
    logprobs: tuple[TokenLogprobs, ...] = ()  # of the tokens that were sampled


class Tokens(Message, tag="tokens", frozen=True):
    """One message a round, for all lanes of this connection."""

    round: int
    lanes: tuple[LaneTokens, ...]


class Rejected(Message, tag="rejected", frozen=True):
    """Request `id` will get no tokens."""

    id: int
    code: Literal["overloaded", "queue_timeout", "context_length", "unavailable", "invalid", "not_supported"]
    message: str


class Statistics(Message, tag="statistics", frozen=True):
    """Counters since ready, and gauges."""

    running: int = 0
    waiting: int = 0
    prefilling: int = 0
    rounds: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    cancelled: int = 0
    failed: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    pages_capacity: int = 0
    pages_allocated: int = 0
    pages_reserved: int = 0


ClientMessage = Submit | Cancel | AskStatistics
EngineMessage = Hello | Boot | Limits | Progress | Tokens | Rejected | Statistics


class ProtocolError(Exception):
    """The peer sent something that is not a frame, not a message, or of another version."""


_HEADER = struct.Struct("<IB")
_encoder = msgspec.msgpack.Encoder()
_client_decoder = msgspec.msgpack.Decoder(ClientMessage)
_engine_decoder = msgspec.msgpack.Decoder(EngineMessage)


def pack_ids(ids: Sequence[int] | np.ndarray) -> bytes:
    """Token ids as little-endian u32 bytes."""
    return np.asarray(ids, dtype="<u4").tobytes()


def unpack_ids(data: bytes) -> np.ndarray:
    """Token ids `[n]` int64 from little-endian u32 bytes.

    Raises:
        ProtocolError: the length is not a multiple of 4.
    """
    if len(data) % 4:
        raise ProtocolError(f"token ids are {len(data)} bytes, not a multiple of 4")
    return np.frombuffer(data, dtype="<u4").astype(np.int64)


def encode(message: ClientMessage | EngineMessage, descriptors: int = 0) -> bytes:
    """One whole frame that announces `descriptors` file descriptors."""
    body = _encoder.encode(message)
    return _HEADER.pack(len(body), descriptors) + body


def decode_client(body: bytes | memoryview) -> ClientMessage:
    """A message from a client.

    Raises:
        ProtocolError: not a message of this version.
    """
    try:
        return _client_decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"not a client message: {error}") from error


def decode_engine(body: bytes | memoryview) -> EngineMessage:
    """A message from the engine.

    Raises:
        ProtocolError: not a message of this version.
    """
    try:
        return _engine_decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"not an engine message: {error}") from error


class FrameReceiver:
    """Cuts a byte stream into frames and hands out the descriptors that came with them. One per connection."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._descriptors: list[int] = []

    def receive(self, connection: socket.socket, size: int = 1 << 20) -> list[tuple[bytes, list[int]]] | None:
        """Read once; return the complete frames (body, descriptors), or None at the end of the stream.

        Raises:
            ProtocolError: a frame is larger than `MAX_FRAME_BYTES`.
            OSError: the connection failed.
        """
        data, descriptors, _, _ = socket.recv_fds(connection, size, MAX_DESCRIPTORS)
        self._descriptors += descriptors
        if not data:
            self.close()
            return None
        self._buffer += data
        frames: list[tuple[bytes, list[int]]] = []
        while len(self._buffer) >= _HEADER.size:
            length, count = _HEADER.unpack_from(self._buffer)
            _check_length(length)
            if len(self._buffer) < _HEADER.size + length:
                break
            if len(self._descriptors) < count:
                raise ProtocolError(f"frame announces {count} descriptors, {len(self._descriptors)} came")
            body = bytes(memoryview(self._buffer)[_HEADER.size : _HEADER.size + length])
            del self._buffer[: _HEADER.size + length]
            frames.append((body, self._descriptors[:count]))
            del self._descriptors[:count]
        return frames

    def close(self) -> None:
        """Close descriptors of a frame that never completed."""
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors = []


class EngineConnection:
    """The asyncio side of one connection to the engine, for `api` and `controller`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, hello: Hello) -> None:
        self._reader, self._writer = reader, writer
        self.hello = hello

    @classmethod
    async def open(cls, path: Path) -> "EngineConnection":
        """Connect and read `Hello`.

        Raises:
            OSError: nobody listens at `path`.
            ProtocolError: the engine speaks another version.
        """
        reader, writer = await asyncio.open_unix_connection(str(path), limit=1 << 20)
        try:
            hello = decode_engine(await _read_frame(reader))
            if not isinstance(hello, Hello) or hello.version != VERSION:
                raise ProtocolError(f"engine at {path} speaks another protocol; this is version {VERSION}")
        except BaseException:
            writer.close()
            raise
        return cls(reader, writer, hello)

    async def send(self, message: ClientMessage) -> None:
        """Write one message; waits while the engine is slow to read.

        Raises:
            OSError: the connection is gone.
        """
        self._writer.write(encode(message))
        await self._writer.drain()

    async def receive(self) -> EngineMessage:
        """The next message.

        Raises:
            ConnectionError: the engine closed the connection.
            ProtocolError: not a message of this version.
        """
        return decode_engine(await _read_frame(self._reader))

    def close(self) -> None:
        """Drop the connection; the engine cancels its requests."""
        self._writer.close()


def _check_length(length: int) -> None:
    if length > MAX_FRAME_BYTES:
        raise ProtocolError(f"frame of {length} bytes; the largest is {MAX_FRAME_BYTES}")


async def _read_frame(reader: asyncio.StreamReader) -> bytes:
    try:
        length, _ = _HEADER.unpack(await reader.readexactly(_HEADER.size))
        _check_length(length)
        return await reader.readexactly(length)
    except asyncio.IncompleteReadError as error:
        raise ConnectionResetError("the engine closed the connection") from error
