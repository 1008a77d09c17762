"""Presets, their overrides, and API keys."""

from itertools import product

import pytest

from engine.api.auth import Keys
from engine.api.config import GenerationDefaults
from engine.api.sampling import preset, resolve_sampling
from tests.api.test_schemas import parse


@pytest.mark.parametrize(
    ("model", "thinking", "expected"),
    [
        ("Qwen3.8-27B", True, (1.0, 0.95, 20, 0, 0)),
        ("Qwen3.6-27B", False, (0.7, 0.8, 20, 0, 1.5)),
        ("Qwen3.6-35B-A3B", True, (1.0, 0.95, 20, 0, 1.5)),
        ("qwen3_5_moe", True, (1.0, 0.95, 20, 0, 1.5)),
        ("Qwen3.6-35B-A3B", False, (0.7, 0.8, 20, 0, 1.5)),
        ("nano", True, (1.0, 0.95, 20, 0, 0)),
    ],
)
def test_presets(model: str, thinking: bool, expected: tuple[float, ...]) -> None:
    made = preset(model, thinking=thinking)
    found = [made.temperature, made.top_p, made.top_k, made.min_p, made.presence_penalty, made.frequency_penalty]
    assert found == [*expected, 0]


@pytest.mark.parametrize(("flag", "field", "greedy"), list(product((None, 0.5), (None, 0.25), (False, True))))
def test_precedence(flag: float | None, field: float | None, greedy: bool) -> None:
    request = parse(temperature=field, min_p=field)
    made = resolve_sampling("nano", request, GenerationDefaults(temperature=flag, greedy=greedy), thinking=True)
    wanted = field if field is not None else flag if flag is not None else 1.0
    assert made.temperature == (0 if greedy else wanted)
    assert made.min_p == (field or 0)


def test_seed_is_signed_on_the_wire_and_unsigned_inside() -> None:
    defaults = GenerationDefaults(seed=7)
    assert resolve_sampling("nano", parse(seed=-1), defaults, thinking=True).seed == 2**64 - 1
    assert resolve_sampling("nano", parse(), defaults, thinking=True).seed == 7
    fresh = {resolve_sampling("nano", parse(), GenerationDefaults(), thinking=True).seed for _ in range(8)}
    assert len(fresh) == 8


@pytest.mark.parametrize(
    ("headers", "accepted"),
    [
        ({"Authorization": "Bearer secret"}, True),
        ({"Authorization": "bEARER   secret  "}, True),
        ({"x-api-key": "secret"}, True),
        ({"x-api-key": "other"}, True),
        ({"x-api-key": "wrong", "Authorization": "Bearer secret"}, True),
        ({"Authorization": "Basic secret"}, False),
        ({"Authorization": "secret"}, False),
        ({"Authorization": "Bearer"}, False),
        ({"x-api-key": "secret "}, False),
        ({"x-api-key": "secre"}, False),
        ({"x-api-key": "s" * 100_000}, False),
        ({"x-api-key": "\udcff"}, False),
        ({}, False),
    ],
)
def test_keys(headers: dict[str, str], accepted: bool) -> None:
    assert (Keys(["secret", "other"]).decide(headers, "::1").verdict == "accepted") is accepted
    assert Keys([]).decide(headers, None).verdict == "accepted"
