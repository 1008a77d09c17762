"""Several lanes in one batch, and what a forward pass writes."""

import dataclasses

import pytest
import torch

from engine.model import Pools, TextModel
from tests.model.conftest import Oracle
from tests.model.lanes import Lane, new_pools, prefill, step
from tests.model.oracle import TOKEN_COUNT, relative_distance

GENERATOR = torch.Generator().manual_seed(41)
PROMPTS = [torch.randint(TOKEN_COUNT, (length,), generator=GENERATOR) for length in (150, 40, 3)]


def lanes() -> list[Lane]:
    """Three lanes on interleaved pages; pages 1 and 9 and slot 3 belong to nobody."""
    return [Lane([7, 2, 4], 2), Lane([5, 3], 0), Lane([8], 1)]


def copy(pools: Pools) -> Pools:
    return Pools(**{field.name: getattr(pools, field.name).clone() for field in dataclasses.fields(pools)})


def alone(model: TextModel, number: int, sizes: list[int]) -> list[torch.Tensor]:
    """Hidden columns of one lane that has the batch to itself."""
    lane, pools, found = lanes()[number], new_pools(model, pages=10, states=4), []
    for size in sizes:
        found += step(model, pools, [(lane, PROMPTS[number][lane.frontier : lane.frontier + size])])
    return found


def test_mixed_prefill_and_decode_equals_each_lane_alone(oracle: Oracle) -> None:
    model = oracle.ours()
    pools, (long, medium, short) = new_pools(model, pages=10, states=4), lanes()
    sizes: dict[int, list[int]] = {0: [100, 1, 49], 1: [1, 20, 19], 2: [1, 1, 1]}
    together: list[list[torch.Tensor]] = [[], [], []]
    for number in range(3):
        parts = [
            (lane, PROMPTS[index][lane.frontier : lane.frontier + sizes[index][number]])
            for index, lane in enumerate((long, medium, short))
        ]
        for index, hidden in enumerate(step(model, pools, parts)):
            together[index].append(hidden)
    for index in range(3):
        for ours, theirs in zip(together[index], alone(model, index, sizes[index]), strict=True):
            assert relative_distance(ours, theirs) < 2e-6
    assert relative_distance(model.logits(together[0][-1][-1]), oracle.logits(PROMPTS[0])[-1]) < 1e-4


def test_only_own_columns_and_states_are_written(oracle: Oracle) -> None:
    model = oracle.ours()
    pools = new_pools(model, pages=10, states=4)
    first, second, third = lanes()
    step(model, pools, [(first, PROMPTS[0][:100]), (second, PROMPTS[1]), (third, PROMPTS[2])])
    before = copy(pools)
    step(model, pools, [(first, PROMPTS[0][100:]), (third, PROMPTS[2])])
    for now, then in ((pools.keys, before.keys), (pools.values, before.values)):
        changed = (now != then).flatten(3).any(-1)
        assert bool((changed == changed[:1]).all()), "layers disagree about what was written"
        rows = {(page, row) for page, row in changed[0].nonzero().tolist()}
        own = [(first.pages[p // 64], p % 64) for p in range(100, 150)] + [(8, p) for p in range(3, 6)]
        assert rows == set(own)
    for now, then in ((pools.recurrent, before.recurrent), (pools.convolution, before.convolution)):
        assert (now != then).flatten(2).any(-1).any(0).tolist() == [False, True, True, False]


def test_shared_prefix_pages_may_be_read_by_two_lanes(oracle: Oracle) -> None:
    model = oracle.ours()
    pools = new_pools(model, pages=10, states=4)
    origin = Lane([6, 0], 0)
    step(model, pools, [(origin, PROMPTS[0][:64])])
    for tensor in (pools.recurrent, pools.convolution):
        tensor[:, 3] = tensor[:, 0]
    fork = Lane([6, 9], 3, frontier=64)
    ours, forked = step(model, pools, [(origin, PROMPTS[0][64:70]), (fork, PROMPTS[1][:6])])
    for hidden, rest in ((ours, PROMPTS[0][64:70]), (forked, PROMPTS[1][:6])):
        whole = torch.cat([PROMPTS[0][:64], rest])
        assert relative_distance(model.logits(hidden), oracle.logits(whole)[64:]) < 1e-4


def test_convolution_history_is_exact_across_splits(oracle: Oracle) -> None:
    model, found = oracle.ours(), []
    for sizes in ([150], [1, 149], [64, 64, 22], [149, 1]):
        lane, pools = Lane([0, 1, 2], 0), new_pools(model)
        for size in sizes:
            step(model, pools, [(lane, PROMPTS[0][lane.frontier : lane.frontier + size])])
        found.append(pools)
    for pools in found[1:]:
        torch.testing.assert_close(pools.convolution, found[0].convolution, rtol=0, atol=1e-4)
        torch.testing.assert_close(pools.recurrent, found[0].recurrent, rtol=0, atol=1e-4)
    assert all(float(pools.convolution[:, 0].abs().min()) > 0 for pools in found)


def test_a_reset_slot_starts_a_new_sequence(oracle: Oracle) -> None:
    model, pools = oracle.ours(), new_pools(oracle.ours())
    (fresh,) = step(model, pools, [(Lane([0], 1), PROMPTS[2])])
    (stale,) = step(model, pools, [(Lane([0], 1), PROMPTS[2])])
    assert relative_distance(stale, fresh) > 1e-2, "a used state should show"
    model.reset_state(pools, 1)
    (again,) = step(model, pools, [(Lane([0], 1), PROMPTS[2])])
    assert torch.equal(again, fresh)


@pytest.mark.parametrize("kv_dtype", [torch.bfloat16, torch.float16])
def test_attention_reads_back_what_the_cache_stored(oracle: Oracle, kv_dtype: torch.dtype) -> None:
    model = oracle.ours()
    lane, pools = Lane([0, 1, 2], 0), new_pools(model, kv_dtype=kv_dtype)
    (hidden,) = step(model, pools, [(lane, PROMPTS[0])])
    distance = relative_distance(model.logits(hidden), prefill(model, PROMPTS[0]))
    assert 1e-5 < distance < 1e-2


def test_states_may_be_stored_in_float16(oracle: Oracle) -> None:
    model, lane = oracle.ours(), Lane([0, 1, 2], 0)
    pools = model.new_pools(3, 1, kv_dtype=torch.float32, state_dtype=torch.float16)
    hidden = [step(model, pools, [(lane, token[None])])[0] for token in PROMPTS[1]]
    distance = relative_distance(model.logits(torch.cat(hidden)), prefill(model, PROMPTS[1]))
    assert pools.recurrent.dtype == torch.float16
    assert 1e-6 < distance < 1e-2
