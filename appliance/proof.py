"""The proof: a started engine decodes a small known prompt before anyone may call it ready.

The tokens are remembered by artifact, device, number formats and program versions. A later start with the same key
must give the same ones; the first start of a key records them.
"""

import asyncio
import hashlib
from pathlib import Path

import msgspec

from engine.protocol import (
    EngineConnection,
    EngineMessage,
    Rejected,
    Sampling,
    Statistics,
    Submit,
    Tokens,
    pack_ids,
    unpack_ids,
)

PROMPT_TOKENS = 8
ANSWER_TOKENS = 8


class ProofError(Exception):
    """The engine did not give an answer, or another one than before."""


class BusyError(Exception):
    """The engine has no room for the proof now. That is an answer of a kind, but not the one asked for."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What was decoded under `key`."""

    key: dict[str, str]
    token_ids: list[int]


def prompt(token_count: int) -> list[int]:
    """A fixed prompt of valid ids `[PROMPT_TOKENS]`, spread over the vocabulary."""
    return [(7919 * (place + 1)) % token_count for place in range(PROMPT_TOKENS)]


async def decode(
    connection: EngineConnection, messages: asyncio.Queue[EngineMessage | None], token_count: int, request: int
) -> list[int]:
    """The engine's greedy answer to the prompt, 1 to `ANSWER_TOKENS` ids; the caller bounds the time.

    `messages` is what arrives on `connection`; None is its end.

    Raises:
        ProofError: the engine refused, failed, went away, or finished without a valid token.
        BusyError: its queue is full, or the prompt waited too long in it.
        OSError: the connection ended.
    """
    ids = pack_ids(prompt(token_count))
    greedy = Sampling(temperature=0.0)
    await connection.send(Submit(id=request, token_ids=ids, sampling=greedy, max_tokens=ANSWER_TOKENS))
    answer: list[int] = []
    while True:
        message = await messages.get()
        if message is None:
            raise ProofError("the engine closed the connection")
        if isinstance(message, Rejected) and message.id == request:
            if message.code in ("overloaded", "queue_timeout"):
                raise BusyError(message.message)
            raise ProofError(f"the engine refused the prompt: {message.message}")
        if not isinstance(message, Tokens):
            continue
        for lane in message.lanes:
            if lane.id != request:
                continue
            answer += [int(token) for token in unpack_ids(lane.token_ids)]
            if lane.finish in ("error", "cancelled"):
                raise ProofError(f"the engine failed while decoding: {lane.error or lane.finish}")
            if lane.finish is not None:
                return _checked(answer, token_count)


def compare(folder: Path, key: dict[str, str], answer: list[int]) -> bool:
    """Compare with what was recorded under `key`; True when this is the first answer, which is now recorded.

    Raises:
        ProofError: another answer than before.
        OSError: the folder is not writable.
    """
    file = folder / f"{hashlib.sha256(msgspec.json.encode(key, order='sorted')).hexdigest()[:16]}.json"
    try:
        known = msgspec.json.decode(file.read_bytes(), type=Record)
    except (OSError, msgspec.MsgspecError):
        folder.mkdir(parents=True, exist_ok=True)
        staged = file.with_suffix(".tmp")
        staged.write_bytes(msgspec.json.encode(Record(key=key, token_ids=answer)))
        staged.replace(file)
        return True
    if known.token_ids != answer:
        raise ProofError(
            f"the answer changed: {answer} now, {known.token_ids} before, with the same artifact, device and versions; "
            f"remove {file} if that is right"
        )
    return False


def _checked(answer: list[int], token_count: int) -> list[int]:
    if not answer:
        raise ProofError("the engine finished without a token")
    if not all(0 <= token < token_count for token in answer):
        raise ProofError(f"the engine gave ids outside of its vocabulary of {token_count}: {answer}")
    return answer


def work_done(statistics: Statistics) -> int:
    """A number that changes whenever the engine has done anything for anybody."""
    now = statistics
    return now.rounds + now.prompt_tokens + now.generated_tokens + now.cancelled + now.failed
