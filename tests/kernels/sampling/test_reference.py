"""The sampler against an independent transcription of spec/model.md §16.2 in plain Python."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.sampling import SamplingRows, best, log_probabilities, penalise, sample, uniform

MASK = 2**64 - 1


def splitmix(state: int) -> int:
    """Output for the state before the increment (Steele, Lea and Flood 2014), in Python's integers."""
    state = (state + 0x9E3779B97F4A7C15) & MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
    return state ^ (state >> 31)


def uniform24(seed: int, position: int, purpose: int) -> float:
    return float(splitmix(splitmix(splitmix(seed) ^ position) ^ purpose) >> 40) / 2**24


@dataclass(frozen=True)
class Settings:
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 20
    min_p: float = 0.0
    presence: float = 0.0
    frequency: float = 0.0
    seed: int = 0


def distribution(logits: list[float], counts: list[int], s: Settings) -> list[tuple[int, float]]:
    """(id, probability) in candidate order."""
    single = np.float32
    adjusted = [
        single(single(value) - single(s.presence) * single(count > 0)) - single(s.frequency) * single(count)
        for value, count in zip(logits, counts, strict=True)
    ]
    order = sorted(range(len(logits)), key=lambda i: (-adjusted[i], i))[: s.top_k if 1 <= s.top_k <= 20 else 20]
    if s.temperature == 0:
        return [(order[0], 1.0)]
    peak = float(adjusted[order[0]])
    weights = [math.exp((float(adjusted[i]) - peak) / s.temperature) for i in order]
    goal = s.top_p * sum(weights)
    kept: list[tuple[int, float]] = []
    for i, weight in zip(order, weights, strict=True):
        if weight < s.min_p * weights[0]:
            break
        if kept and sum(w for _, w in kept) >= goal:
            break
        kept.append((i, weight))
    total = sum(weight for _, weight in kept)
    return [(i, weight / total) for i, weight in kept]


def rows_of(settings: list[Settings]) -> SamplingRows:
    def real(values: list[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float64)

    return SamplingRows(
        temperature=real([s.temperature for s in settings]),
        top_p=real([s.top_p for s in settings]),
        top_k=torch.tensor([s.top_k for s in settings]),
        min_p=real([s.min_p for s in settings]),
        presence_penalty=real([s.presence for s in settings]),
        frequency_penalty=real([s.frequency for s in settings]),
        seed=torch.tensor([(s.seed + 2**63) % 2**64 - 2**63 for s in settings]),
    )


def draw(logits: list[float], counts: list[int], s: Settings, positions: range, purpose: int = 1) -> list[int]:
    n = len(positions)
    tokens: list[int] = sample(
        torch.tensor([logits] * n, dtype=torch.float32),
        torch.tensor([counts] * n, dtype=torch.int32),
        rows_of([s] * n),
        torch.tensor(positions),
        torch.full((n,), purpose),
    ).tolist()
    return tokens


def test_splitmix_known_answers() -> None:
    """The published first outputs of splitmix64 from the seeds 0 and 1234567."""
    assert splitmix(0) == 0xE220A8397B1DCDAF
    assert splitmix(1234567) == 6457827717110365317


@given(st.integers(0, MASK), st.integers(0, 2**40), st.integers(0, 5))
def test_uniform_is_the_stated_hash(seed: int, position: int, purpose: int) -> None:
    signed = (seed + 2**63) % 2**64 - 2**63
    got = uniform(torch.tensor([signed]), torch.tensor([position]), torch.tensor([purpose]))
    assert got.tolist() == [uniform24(seed, position, purpose)]


def test_uniform_known_answers() -> None:
    """Pinned: a change here changes every seeded answer."""
    got = uniform(torch.tensor([0, 1, -1]), torch.tensor([0, 5, 262_143]), torch.tensor([0, 1, 1])) * 2**24
    assert got.tolist() == [2327157, 16028211, 5449809]


LOGIT = st.sampled_from([-3.0, -1.5, -0.25, -0.0, 0.0, 0.5, 0.5000001, 1.0, 2.75, 9.0]) | st.floats(-30, 30, width=32)
SETTINGS = st.builds(
    Settings,
    temperature=st.sampled_from([0.0, 5e-324, 1e-3, 0.7, 1.0, 2.0]),
    top_p=st.sampled_from([0.0, 1e-9, 0.3, 0.8, 0.95, 1.0]),
    top_k=st.integers(0, 20),
    min_p=st.sampled_from([0.0, 0.03, 0.5, 1.0]),
    presence=st.sampled_from([-2.0, 0.0, 0.5, 1.5, 2.0]),
    frequency=st.sampled_from([-2.0, 0.0, 0.1, 2.0]),
    seed=st.integers(0, MASK),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(LOGIT, st.integers(0, 3)), min_size=1, max_size=40), SETTINGS, st.integers(0, 2**18))
def test_draw_is_the_inverse_of_the_stated_distribution(
    vocabulary: list[tuple[float, int]], s: Settings, position: int
) -> None:
    logits, counts = [logit for logit, _ in vocabulary], [count for _, count in vocabulary]
    token = draw(logits, counts, s, range(position, position + 1))[0]
    u = uniform24(s.seed, position, 1)
    below = 0.0
    for candidate, probability in distribution(logits, counts, s):
        if candidate == token:  # the same sums in another order may differ by rounding
            assert below - 1e-9 <= u <= below + probability + 1e-9
            return
        below += probability
    raise AssertionError(f"token {token} is not in the distribution")


@settings(max_examples=200, deadline=None)
@given(st.lists(LOGIT, min_size=1, max_size=60), st.integers(1, 20))
def test_best_orders_by_value_then_lowest_id(logits: list[float], count: int) -> None:
    values, ids = best(torch.tensor([logits], dtype=torch.float32), count)
    expected = sorted(range(len(logits)), key=lambda i: (-np.float32(logits[i]), i))[:count]
    assert ids.tolist() == [expected]
    assert values.tolist() == [[float(np.float32(logits[i])) for i in expected]]


def test_best_handles_every_magnitude() -> None:
    row = torch.tensor([[-3.4e38, -1e-45, -0.0, 0.0, 1e-45, 3.4e38, -float("inf"), float("inf")]])
    assert best(row, 8)[1].tolist() == [[7, 5, 4, 2, 3, 1, 0, 6]]


@pytest.mark.parametrize(
    "s",
    [
        Settings(),
        Settings(temperature=0.7, top_p=0.8, top_k=5, presence=1.5, seed=3),
        Settings(temperature=2.0, min_p=0.2, frequency=0.3, seed=2**64 - 1),
    ],
)
def test_frequencies_follow_the_distribution(s: Settings) -> None:
    """Chi-square over 20,000 positions; the seeds are fixed, so this either always passes or never does."""
    logits = [0.0, 1.0, 2.0, 0.5, 1.9, -1.0, 0.25, 1.5]
    counts = [0, 1, 2, 0, 0, 3, 0, 1]
    n = 20_000
    drawn = np.bincount(draw(logits, counts, s, range(n)), minlength=len(logits))
    expected = np.zeros(len(logits))
    for token, probability in distribution(logits, counts, s):
        expected[token] = n * probability
    assert drawn[expected == 0].sum() == 0
    seen = expected > 0
    chi_square = float((((drawn - expected) ** 2)[seen] / expected[seen]).sum())
    freedom = int(seen.sum()) - 1
    assert chi_square < freedom + 4 * math.sqrt(2 * freedom)  # about 1 in 10,000 for a right sampler


def test_purposes_draw_independently() -> None:
    logits, counts = [0.0] * 16, [0] * 16
    first, second = (draw(logits, counts, Settings(), range(4000), purpose) for purpose in (0, 1))
    same = sum(a == b for a, b in zip(first, second, strict=True))
    assert abs(same - 250) < 80


def test_rows_do_not_depend_on_neighbours() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(8, 1000, generator=generator) * 3
    counts = torch.randint(0, 3, (8, 1000), generator=generator, dtype=torch.int32)
    each = [Settings(temperature=0.6 + i / 5, top_p=0.9, presence=0.5, frequency=0.1, seed=i) for i in range(8)]
    position, purpose = torch.arange(100, 108), torch.ones(8, dtype=torch.int64)
    together = sample(logits, counts, rows_of(each), position, purpose).tolist()
    alone = [
        sample(logits[i : i + 1], counts[i : i + 1], rows_of([each[i]]), position[i : i + 1], purpose[i : i + 1])
        for i in range(8)
    ]
    assert together == [int(token) for token in alone]


def test_penalties_count_only_what_was_generated() -> None:
    adjusted = penalise(
        torch.tensor([[1.0, 1.0, 1.0]]),
        torch.tensor([[0, 1, 3]], dtype=torch.int32),
        torch.tensor([0.5]),
        torch.tensor([0.25]),
    )
    assert adjusted.tolist() == [[1.0, 0.25, -0.25]]


def test_greedy_applies_penalties_and_takes_the_lowest_id() -> None:
    greedy = Settings(temperature=0, presence=2.0, top_k=7, top_p=0.1, min_p=0.9)
    assert draw([1.0, 3.0, 2.0, 2.0], [0, 1, 0, 0], greedy, range(3)) == [2, 2, 2]


def test_log_probabilities() -> None:
    logits = torch.tensor([[1.0, 2.0, 2.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    chosen, values, ids = log_probabilities(logits, torch.tensor([0, 3]), 2)
    norm = math.log(math.e + 2 * math.e**2 + 1)
    assert chosen.tolist() == pytest.approx([1 - norm, -math.log(4)], abs=1e-6)
    assert ids.tolist() == [[1, 2], [0, 1]]
    assert values[0].tolist() == pytest.approx([2 - norm, 2 - norm], abs=1e-6)
    chosen, values, ids = log_probabilities(logits, torch.tensor([0, 3]), 0)
    assert (values.shape, ids.shape) == ((2, 0), (2, 0))
