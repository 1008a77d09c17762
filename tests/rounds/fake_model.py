"""A model whose logits are a pure function of the tokens that it finds in its own pages and state.

It believes nothing it is told: tokens are read back from the pages that the batch names, and must agree with what has
gone through the state slot. A wrong page, a state that was not reset, or a skipped token is an error at once.
"""

import threading
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.memory import PAGE_TOKENS
from engine.rounds import Batch
from kernels.sampling import uniform


@dataclass
class FakePools:
    """Token ids `[pages, 64]` and, for each slot, a digest and a count of tokens `[states, 2]`."""

    pages: Tensor
    states: Tensor


@dataclass
class FakeModel:
    """`counting` makes the successor of the last token by far the likeliest. `delay` seconds a forward pass, or one
    permit of `gate`.

    A batch with the token `poison` raises; after the token `not_a_number` the logits are NaN.
    """

    token_count: int = 64
    counting: bool = False
    delay: float = 0.0
    gate: threading.Semaphore | None = None
    poison: int | None = None
    not_a_number: int | None = None
    out_of_memory: bool = False
    forwards: int = 0
    columns: int = 0

    def new_pools(self, pages: int, states: int, *, kv_dtype: torch.dtype, state_dtype: torch.dtype) -> FakePools:
        assert kv_dtype == torch.bfloat16
        assert state_dtype in (torch.float32, torch.float16)
        return FakePools(
            torch.full((pages, PAGE_TOKENS), -1, dtype=torch.int64), torch.zeros(states, 2, dtype=torch.int64)
        )

    def reset_state(self, pools: FakePools, slot: int) -> None:
        pools.states[slot] = 0

    def forward(self, batch: Batch, pools: FakePools) -> Tensor:
        self.forwards += 1
        self.columns += len(batch.token_ids)
        if self.delay:
            time.sleep(self.delay)
        if self.gate is not None:
            assert self.gate.acquire(timeout=20)
        if self.out_of_memory:
            raise RuntimeError(
                "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"
            )
        if self.poison is not None and self.poison in batch.token_ids:
            raise RuntimeError("poisoned")
        hidden = torch.empty(len(batch.token_ids), 2, dtype=torch.int64)
        for segment in batch.segments:
            ids = batch.token_ids[segment.begin : segment.end]
            where = torch.arange(segment.frontier, segment.frontier + len(ids))
            assert torch.equal(batch.positions[:, segment.begin : segment.end], where.expand(3, -1))
            flat = torch.tensor(segment.pages)[torch.arange(int(where[-1]) + 1) // PAGE_TOKENS] * PAGE_TOKENS
            flat += torch.arange(len(flat)) % PAGE_TOKENS
            pools.pages.view(-1)[flat[segment.frontier :]] = ids
            read = pools.pages.view(-1)[flat]
            digests = torch.cumsum(_hash(read, torch.arange(len(read))), 0)
            state = pools.states[segment.state]
            before = digests[segment.frontier - 1] if segment.frontier else torch.tensor(0)
            # The warm-up runs the end of a context whose beginning never was; its slot says so.
            if state[1] and (state[1] != segment.frontier or state[0] != before):
                raise AssertionError(
                    f"slot {segment.state} saw {int(state[1])} tokens, not the {segment.frontier} paged"
                )
            state[0], state[1] = digests[-1], len(read)
            hidden[segment.begin : segment.end, 0] = digests[segment.frontier :]
            hidden[segment.begin : segment.end, 1] = ids
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        ids = torch.arange(self.token_count)
        rows = torch.stack([uniform(digest, ids, torch.tensor(7)) for digest in hidden[:, 0]]).to(torch.float32) * 6
        if self.counting:
            rows[torch.arange(len(rows)), (hidden[:, 1] + 1) % self.token_count] += 100
        if self.not_a_number is not None:
            rows[hidden[:, 1] == self.not_a_number] = float("nan")
        return rows


def _hash(ids: Tensor, positions: Tensor) -> Tensor:
    return (uniform(ids, positions, torch.tensor(6)) * 2**24).to(torch.int64)
