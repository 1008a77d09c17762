"""Our text stack against transformers, on small random models of both families (spec/model.md §17)."""

import pytest
import torch

from tests.model.conftest import Oracle
from tests.model.lanes import Lane, new_pools, prefill, step
from tests.model.oracle import TOKEN_COUNT, relative_distance

PROMPT = torch.randint(TOKEN_COUNT, (300,), generator=torch.Generator().manual_seed(1))
LENGTHS = (1, 2, 63, 64, 65, 300)


@pytest.mark.parametrize("length", LENGTHS)
def test_logits_at_every_position_in_one_piece(oracle: Oracle, length: int) -> None:
    token_ids = PROMPT[:length]
    ours, theirs = prefill(oracle.ours(), token_ids), oracle.logits(token_ids)
    assert ours.dtype == torch.float32
    assert ours.shape == theirs.shape == (length, TOKEN_COUNT)
    assert relative_distance(ours, theirs) < 1e-4
    assert max(relative_distance(a, b) for a, b in zip(ours, theirs, strict=True)) < 1e-4


@pytest.mark.parametrize("length", [64, 65, 300])
@pytest.mark.parametrize("sizes", [[1], [7], [64], [65], [128], [100, 1, 1, 17]], ids=str)
def test_logits_in_chunks(oracle: Oracle, length: int, sizes: list[int]) -> None:
    token_ids = PROMPT[:length]
    assert relative_distance(prefill(oracle.ours(), token_ids, sizes), oracle.logits(token_ids)) < 1e-4


@pytest.mark.parametrize("length", [1, 2, 65, 300])
def test_bfloat16_is_no_further_from_float32_than_transformers(oracle: Oracle, length: int) -> None:
    token_ids = PROMPT[:length]
    exact = oracle.logits(token_ids)
    theirs = relative_distance(oracle.logits(token_ids, torch.bfloat16), exact)
    ours = relative_distance(prefill(oracle.ours(torch.bfloat16), token_ids), exact)
    assert theirs > 1e-3, "the oracle did not run in bfloat16"
    assert 1e-3 < ours <= 1.3 * theirs


@pytest.mark.parametrize("length", [1, 65])
def test_greedy_continuations_are_equal(oracle: Oracle, length: int) -> None:
    model = oracle.ours()
    lane, pools = Lane(pages=[3, 0, 1], state=0), new_pools(model)
    tokens = PROMPT[:length]
    for _ in range(64):
        (hidden,) = step(model, pools, [(lane, tokens[lane.frontier :])])
        tokens = torch.cat([tokens, model.logits(hidden[-1:]).argmax(-1)])
    # The oracle reads our continuation at once. It would have written the same one if, after every prefix of it, its
    # own best token is the next: one causal pass shows what 64 would.
    best = oracle.logits(tokens)[length - 1 : -1].argmax(-1)
    assert tokens[length:].tolist() == best.tolist()
    assert len(set(best.tolist())) > 8, "a continuation that repeats itself proves little"
