"""Prefill and decode with the fake model, which checks pages and states itself."""

import functools
from typing import Any

import numpy as np
import pytest
import torch

from engine.protocol import Sampling
from engine.rounds import Draw, Drawn, NotFiniteError, Runtime, Sampler, Span, decode, prefill
from kernels.sampling import PURPOSE_DECODE, PURPOSE_PREFILL
from tests.rounds.fake_model import FakeModel

CPU = torch.device("cpu")
RANDOM = Sampling(temperature=1.0, top_p=0.9, presence_penalty=0.4, frequency_penalty=0.3, seed=11)


def runtime(model: FakeModel | None = None, lanes: int = 3, *, together: bool = False) -> Runtime:
    model = model or FakeModel()
    pools = model.new_pools(16, lanes, kv_dtype=torch.bfloat16, state_dtype=torch.float32)
    return Runtime(model, pools, Sampler(lanes, model.token_count, CPU), CPU, together)


def generate(made: Runtime, slot: int, pages: list[int], prompt: list[int], count: int, cuts: list[int]) -> list[int]:
    """A whole sequence on one lane, its prompt cut at `cuts`."""
    made.start_lane(slot, [])
    for begin, end in zip([0, *cuts], cuts, strict=False):
        assert prefill(made, Span(slot, begin, pages, prompt[begin:end]), None) is None
    begin = cuts[-1] if cuts else 0
    first = prefill(made, Span(slot, begin, pages, prompt[begin:]), Draw(slot, len(prompt), PURPOSE_PREFILL, RANDOM))
    assert isinstance(first, Drawn)
    tokens = [first.token]
    while len(tokens) < count:
        frontier = len(prompt) + len(tokens) - 1
        (drawn,) = decode(
            made, [(Span(slot, frontier, pages, tokens[-1:]), Draw(slot, frontier + 1, PURPOSE_DECODE, RANDOM))]
        )
        assert isinstance(drawn, Drawn)
        tokens.append(drawn.token)
    return tokens


def test_slot_pages_and_cuts_do_not_matter() -> None:
    prompt = [i * 5 % 64 for i in range(100)]
    expected = generate(runtime(), 0, [0, 1, 2], prompt, 30, [])
    assert generate(runtime(), 2, [9, 3, 14], prompt, 30, [1, 64, 65]) == expected
    used = runtime()
    generate(used, 1, [5, 6, 7], [1, 2, 3], 20, [])
    assert generate(used, 1, [7, 6, 5], prompt, 30, [64]) == expected


def test_counts_come_back_after_a_pause() -> None:
    made = runtime()
    sampler = made.sampler
    logits = torch.randn(1, 64, generator=torch.Generator().manual_seed(0))
    sampler.start(0, [])
    drawn = [sampler.draw(logits, [Draw(0, position, PURPOSE_DECODE, RANDOM)])[0] for position in range(20)]
    tokens = [each.token for each in drawn if isinstance(each, Drawn)]
    assert len(tokens) == 20
    before = sampler.counts[0].clone()
    assert before.tolist() == torch.bincount(torch.tensor(tokens), minlength=64).tolist()
    sampler.start(1, tokens)
    assert torch.equal(sampler.counts[1], before)
    sampler.start(1, [])
    assert not sampler.counts[1].any()


def test_a_failing_lane_fails_alone() -> None:
    made = runtime(FakeModel(counting=True, poison=9))
    greedy = Sampling(temperature=0.0)
    columns = [
        (Span(slot, 0, [slot], [token]), Draw(slot, 1, PURPOSE_DECODE, greedy)) for slot, token in enumerate((5, 9, 7))
    ]
    first, second, third = decode(made, columns)
    assert (first, third) == (Drawn(6), Drawn(8))
    assert isinstance(second, RuntimeError)


def test_a_failing_step_of_all_lanes_fails_all_of_them() -> None:
    made = runtime(FakeModel(counting=True, poison=9), together=True)
    greedy = Sampling(temperature=0.0)
    columns = [(Span(slot, 0, [slot], [5 + slot]), Draw(slot, 1, PURPOSE_DECODE, greedy)) for slot in range(3)]
    assert decode(made, columns) == [Drawn(6), Drawn(7), Drawn(8)]
    assert made.model.forwards == 1  # type: ignore[attr-defined]
    columns[1] = Span(1, 1, [1], [9]), columns[1][1]
    assert all(isinstance(result, RuntimeError) for result in decode(made, columns))


def test_logits_must_be_finite() -> None:
    made = runtime(FakeModel(counting=True, not_a_number=9))
    draw = Draw(0, 1, PURPOSE_DECODE, Sampling(temperature=0.0))
    (bad,) = decode(made, [(Span(0, 0, [0], [9]), draw)])
    assert isinstance(bad, NotFiniteError)
    with pytest.raises(NotFiniteError):
        prefill(made, Span(1, 0, [1], [9]), draw)


@pytest.mark.parametrize("seed", [0, 2**63, 2**64 - 1, -(2**63), -1])
def test_every_seed_is_taken(seed: int) -> None:
    """A negative seed is the unsigned one with the same bits."""
    logits = torch.zeros(1, 64)
    drawn = [
        [
            runtime().sampler.draw(logits, [Draw(0, position, PURPOSE_DECODE, Sampling(seed=same))])
            for position in range(5)
        ]
        for same in (seed, seed % 2**64)
    ]
    assert drawn[0] == drawn[1]


def test_log_probabilities_only_for_those_who_ask() -> None:
    sampler = runtime().sampler
    logits = torch.randn(3, 64, generator=torch.Generator().manual_seed(3))
    draws = [
        Draw(slot, 5, PURPOSE_DECODE, Sampling(temperature=0.0), logprobs) for slot, logprobs in enumerate((2, 0, 5))
    ]
    drawn = sampler.draw(logits, draws)
    rows = [each.logprobs for each in drawn if isinstance(each, Drawn)]
    assert rows[1] is None
    assert rows[0] is not None
    assert rows[2] is not None
    assert (len(rows[0].top), len(rows[2].top)) == (2, 5)
    assert rows[2].logprob == pytest.approx(float(torch.log_softmax(logits[2], 0).max()), abs=1e-6)


def test_masks_are_asked_for_after_the_forward_pass_and_fail_alone() -> None:
    made = runtime()
    order: list[str] = []

    def mask(bits: int) -> np.ndarray[Any, np.dtype[np.int32]]:
        order.append(f"mask after {made.model.forwards} passes")  # type: ignore[attr-defined]
        if not bits:
            raise ValueError("no mask")
        return np.array([bits, 0], dtype=np.int32)

    columns = []
    for slot in range(3):
        made.start_lane(slot, [])
        prefill(made, Span(slot, 0, [slot], [7]), None)
    for slot, bits in ((0, 1 << 5), (1, 0), (2, (1 << 5) | (1 << 9))):
        draw = Draw(slot, 2, PURPOSE_DECODE, RANDOM, mask=functools.partial(mask, bits), forbidden=(5,) * (slot == 2))
        columns.append((Span(slot, 1, [slot], [8]), draw))
    first, second, third = decode(made, columns)
    assert isinstance(first, Drawn)
    assert isinstance(third, Drawn)
    assert (first.token, third.token) == (5, 9)
    assert isinstance(second, ValueError)
    assert order == ["mask after 4 passes", "mask after 5 passes", "mask after 6 passes"]
