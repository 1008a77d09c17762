"""Every field of a request is checked before any work, and the refusal names it."""

from typing import Any

import pytest

from engine.core.intake import Intake
from engine.core.lane import Request
from engine.protocol import Media, Rejected, Thinking, pack_ids
from tests.core.harness import TINY_VOCABULARY, submit

INTAKE = Intake(100, 60, TINY_VOCABULARY)


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"temperature": float("nan")}, "invalid", ["temperature", "nan", "at most 2"]),
        ({"temperature": 2.01}, "invalid", ["temperature is 2.01"]),
        ({"top_p": -0.1}, "invalid", ["top_p is -0.1"]),
        ({"top_k": 21}, "invalid", ["top_k is 21", "at most 20"]),
        ({"min_p": 1e308}, "invalid", ["min_p"]),
        ({"presence_penalty": -2.5}, "invalid", ["presence_penalty is -2.5", "at least -2"]),
        ({"frequency_penalty": float("inf")}, "invalid", ["frequency_penalty is inf"]),
        ({"seed": 2**64}, "invalid", ["seed"]),
        ({"max_tokens": -1}, "invalid", ["max_tokens is -1", "at least 0"]),
        ({"logprobs": 21}, "invalid", ["logprobs is 21"]),
        ({"deadline_seconds": float("inf")}, "invalid", ["deadline_seconds"]),
        ({"deadline_seconds": -1.0}, "invalid", ["deadline_seconds"]),
        ({"stop_ids": (64,)}, "invalid", ["stop_ids is 64", "at most 63"]),
        ({"stop_ids": tuple(range(64)) * 5}, "invalid", ["number of stop_ids is 320"]),
        ({"stop_strings": (b"",)}, "invalid", ["bytes of a stop string is 0"]),
        ({"stop_strings": (b"x" * 5000,)}, "invalid", ["stop string is 5000"]),
        ({"stop_strings": (b"x",) * 257}, "invalid", ["number of stop_strings is 257"]),
        ({"checkpoints": (4,)}, "invalid", ["checkpoints is 4", "at most 3"]),
        ({"thinking": Thinking(close=b"")}, "invalid", ["thinking.close is 0"]),
        ({"thinking": Thinking(close=b"b", budget=0)}, "invalid", ["thinking.budget is 0"]),
        ({"thinking": Thinking(close=b"b", budget=1)}, "invalid", ["thinking.wrap_up is empty"]),
        ({"thinking": Thinking(close=b"b", budget=1, wrap_up=b"x")}, "invalid", ["thinking.wrap_up", "1 bytes"]),
        ({"thinking": Thinking(close=b"b", budget=1, wrap_up=pack_ids([64]))}, "invalid", ["token id 64"]),
        ({"thinking": Thinking(close=b"b", budget=1, wrap_up=pack_ids([0]))}, "invalid", ["does not hold", "b'b'"]),
        ({"constraint": b""}, "not_supported", ["constraint"]),
        ({"media": (Media(digest=b"", kind="image", shape=(1,), begin=0),)}, "not_supported", ["media"]),
    ],
)
def test_refusals_name_the_field(fields: dict[str, Any], code: str, words: list[str]) -> None:
    message = submit([1, 2, 3], **fields)
    result = INTAKE.read(1, message)
    assert isinstance(result, Rejected)
    assert (result.id, result.code) == (message.id, code)
    assert all(word in result.message for word in words), result.message


@pytest.mark.parametrize(
    ("token_ids", "code", "words"),
    [
        (b"", "invalid", ["prompt is empty"]),
        (b"\0\0\0\0\0", "invalid", ["5 bytes"]),
        (pack_ids([1, 64]), "invalid", ["token id 64", "below 64"]),
        (b"\xff" * 4, "invalid", ["token id 4294967295"]),
        (pack_ids([1] * 101), "context_length", ["101 tokens", "at most 100"]),
    ],
)
def test_refused_prompts(token_ids: bytes, code: str, words: list[str]) -> None:
    import msgspec

    result = INTAKE.read(1, msgspec.structs.replace(submit([1]), token_ids=token_ids))
    assert isinstance(result, Rejected)
    assert result.code == code
    assert all(word in result.message for word in words), result.message


def test_what_is_right_becomes_a_request() -> None:
    made = INTAKE.read(
        3, submit([1] * 90, 2**63, id=7, stop_ids=(0, 63), deadline_seconds=5.0, seed=-(2**63), logprobs=20)
    )
    assert isinstance(made, Request)
    assert (made.key, made.limit, made.limit_finish, made.wait_seconds) == ((3, 7), 10, "context", 5.0)
    late = INTAKE.read(3, submit([1] * 90, 10, deadline_seconds=1e300))
    assert isinstance(late, Request)
    assert (late.limit_finish, late.wait_seconds) == ("length", 60)
