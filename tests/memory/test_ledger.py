"""Planned bytes are those of the tensors; measured ones are what the meter says."""

import torch

from engine.memory import Ledger, RuntimeSizes, largest_context, plan_runtime
from engine.model import Pools
from tests.core.tiny import tiny_config


def test_rows_count_from_the_last() -> None:
    readings = iter([100, 140, 135, 300])
    ledger = Ledger(lambda: next(readings))
    ledger.start()
    ledger.close_row("weights", 38)
    ledger.close_row("shrunk", 0)
    ledger.close_row("pools", 170)
    assert ledger.rows == {"weights": (38, 40), "shrunk": (0, 0), "pools": (170, 165)}
    assert ledger.planned() == 208


def test_the_plan_is_what_the_pools_take() -> None:
    config = tiny_config()
    pools = Pools.zeros(
        config,
        attention_layers=len(config.attention_layers),
        linear_layers=len(config.linear_layers),
        pages=7,
        states=3,
        kv_dtype=torch.bfloat16,
        state_dtype=torch.float16,
        column_dtype=torch.float32,
        device=torch.device("cpu"),
    )
    sizes = RuntimeSizes(pages=7, lanes=3, max_context=448, prefill_chunk=128, token_count=300, state_element=2)
    plan = plan_runtime(config, sizes)
    assert plan.kv_pages + plan.state_images == pools.bytes
    assert plan.token_counts == 3 * 300 * 4
    assert plan.total == pools.bytes + plan.token_counts + plan.workspace


def test_the_largest_context_is_exact() -> None:
    config = tiny_config()
    sizes = RuntimeSizes(pages=2048, lanes=2, max_context=2048 * 64, prefill_chunk=128, token_count=300)
    everything = plan_runtime(config, sizes).total
    assert largest_context(config, sizes, everything) == sizes.max_context
    found = largest_context(config, sizes, everything // 3)
    assert 0 < found < sizes.max_context

    def total(context: int) -> int:
        shorter = RuntimeSizes(pages=context // 64, lanes=2, max_context=context, prefill_chunk=128, token_count=300)
        return plan_runtime(config, shorter).total

    assert total(found) <= everything // 3 < total(found + 64)
    assert largest_context(config, sizes, 1000) == 0
