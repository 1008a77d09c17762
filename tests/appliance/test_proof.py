"""The proof: what counts as an answer, and what is remembered."""

import asyncio
from pathlib import Path
from typing import Literal, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance import proof
from engine.protocol import (
    ClientMessage,
    EngineConnection,
    EngineMessage,
    Finish,
    LaneTokens,
    Rejected,
    Submit,
    Tokens,
    pack_ids,
    unpack_ids,
)


class Recorder:
    """Keeps what was sent."""

    def __init__(self) -> None:
        self.sent: list[ClientMessage] = []

    async def send(self, message: ClientMessage) -> None:
        self.sent.append(message)


def tokens(ids: list[int], finish: Finish | None = None, request: int = 1) -> Tokens:
    return Tokens(round=1, lanes=(LaneTokens(id=request, token_ids=pack_ids(ids), finish=finish),))


async def decode(*messages: EngineMessage | None) -> tuple[list[int], Submit]:
    queue: asyncio.Queue[EngineMessage | None] = asyncio.Queue()
    for message in messages:
        queue.put_nowait(message)
    recorder = Recorder()
    async with asyncio.timeout(1):
        answer = await proof.decode(cast("EngineConnection", recorder), queue, 100, request=1)
    submit = recorder.sent[0]
    assert isinstance(submit, Submit)
    return answer, submit


async def test_an_answer_of_several_rounds() -> None:
    answer, submit = await decode(tokens([5], request=2), tokens([7]), tokens([8]), tokens([9], "length"))
    assert answer == [7, 8, 9]
    assert submit.sampling.temperature == 0.0
    assert all(0 <= token < 100 for token in unpack_ids(submit.token_ids))


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ((tokens([], "length"),), "without a token"),
        ((tokens([100], "length"),), "outside of its vocabulary"),
        ((tokens([1], "error"),), "failed while decoding"),
        ((Rejected(id=1, code="unavailable", message="not now"),), "not now"),
        ((tokens([1]), None), "closed the connection"),
    ],
)
async def test_what_is_no_answer(messages: tuple[EngineMessage | None, ...], reason: str) -> None:
    with pytest.raises(proof.ProofError, match=reason):
        await decode(*messages)


@pytest.mark.parametrize("code", ["overloaded", "queue_timeout"])
async def test_a_busy_engine_is_not_a_wrong_one(code: Literal["overloaded", "queue_timeout"]) -> None:
    with pytest.raises(proof.BusyError, match="full"):
        await decode(Rejected(id=1, code=code, message="full"))


async def test_an_engine_that_says_nothing_is_waited_for() -> None:
    with pytest.raises(TimeoutError):
        await decode(tokens([1]))


def test_the_first_answer_is_recorded_and_later_ones_compared(tmp_path: Path) -> None:
    key = {"fingerprint": "a"}
    assert proof.compare(tmp_path / "proofs", key, [1, 2])
    assert not proof.compare(tmp_path / "proofs", key, [1, 2])
    with pytest.raises(proof.ProofError, match=r"\[1, 3\] now, \[1, 2\] before"):
        proof.compare(tmp_path / "proofs", key, [1, 3])
    assert proof.compare(tmp_path / "proofs", {"fingerprint": "b"}, [1, 3])
    (damaged,) = [file for file in (tmp_path / "proofs").iterdir() if b'"b"' in file.read_bytes()]
    damaged.write_text("{")
    assert proof.compare(tmp_path / "proofs", {"fingerprint": "b"}, [4])


@given(st.integers(1, 300_000))
def test_the_prompt_is_valid_in_every_vocabulary(token_count: int) -> None:
    assert all(0 <= token < token_count for token in proof.prompt(token_count))
    assert len(proof.prompt(token_count)) == proof.PROMPT_TOKENS
