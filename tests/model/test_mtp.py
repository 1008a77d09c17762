"""The MTP layer against a float64 transcription of spec/model.md §8 over checkpoint tensors."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from engine.model import Batch, Segment
from tests.model.conftest import Oracle
from tests.model.lanes import Lane, new_pools, positions, step
from tests.model.oracle import TOKEN_COUNT

Array = npt.NDArray[np.float64]
TOKENS = torch.randint(TOKEN_COUNT, (91,), generator=torch.Generator().manual_seed(31))


def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


class Transcription:
    """The layer in numpy, with its own cache of every slot."""

    def __init__(self, oracle: Oracle) -> None:
        self.config = oracle.config
        self.state = {name: tensor.double().numpy() for name, tensor in oracle.state.items()}
        self.keys: list[Array] = []
        self.values: list[Array] = []

    def weight(self, name: str) -> Array:
        return self.state[f"mtp.{name}.weight"]

    def rms0(self, x: Array, weight: Array) -> Array:
        return np.asarray(x / np.sqrt((x**2).mean(-1, keepdims=True) + self.config.rms_norm_eps) * (1 + weight))

    def rope(self, x: Array, position: Array) -> Array:
        """x [heads, 256], position [3]."""
        out = x.copy()
        for i in range(32):
            phi = position[i % 3] * 1e7 ** (-2 * i / 64)
            out[:, i] = x[:, i] * np.cos(phi) - x[:, i + 32] * np.sin(phi)
            out[:, i + 32] = x[:, i + 32] * np.cos(phi) + x[:, i] * np.sin(phi)
        return out

    def mlp(self, v: Array, *matrices: Array) -> Array:
        gate, up, down = matrices
        product = gate @ v
        return np.asarray(down @ (product * sigmoid(product) * (up @ v)))

    def matrices(self, prefix: str) -> list[Array]:
        return [self.weight(f"{prefix}{name}_proj") for name in ("gate", "up", "down")]

    def feed_forward(self, v: Array) -> Array:
        prefix = "layers.0.mlp."
        if self.config.experts is None:
            return self.mlp(v, *self.matrices(prefix))
        p = np.exp(self.weight(f"{prefix}gate") @ v)
        p /= p.sum()
        chosen = np.argsort(-p, kind="stable")[: self.config.experts.per_token]
        gate_up, down = self.state[f"mtp.{prefix}experts.gate_up_proj"], self.state[f"mtp.{prefix}experts.down_proj"]
        y = sum(p[e] / p[chosen].sum() * self.mlp(v, *np.split(gate_up[e], 2), down[e]) for e in chosen)
        shared = self.mlp(v, *self.matrices(f"{prefix}shared_expert."))
        return np.asarray(y + sigmoid(self.weight(f"{prefix}shared_expert_gate") @ v) * shared)

    def column(self, slot: int, token: int, hidden: Array, position: Array) -> Array:
        """One column at cache slot `slot`."""
        attention, config = "layers.0.self_attn.", self.config
        heads, key_heads = config.num_attention_heads, config.num_key_value_heads
        e = self.rms0(self.state["model.embed_tokens.weight"][token], self.weight("pre_fc_norm_embedding"))
        g = self.rms0(hidden, self.weight("pre_fc_norm_hidden"))
        x = self.weight("fc") @ np.concatenate([e, g])
        u = self.rms0(x, self.weight("layers.0.input_layernorm"))
        pair = (self.weight(f"{attention}q_proj") @ u).reshape(heads, 2, 256)
        query = self.rope(self.rms0(pair[:, 0], self.weight(f"{attention}q_norm")), position)
        key = (self.weight(f"{attention}k_proj") @ u).reshape(key_heads, 256)
        del self.keys[slot:], self.values[slot:]
        self.keys.append(self.rope(self.rms0(key, self.weight(f"{attention}k_norm")), position))
        self.values.append((self.weight(f"{attention}v_proj") @ u).reshape(key_heads, 256))
        keys, values = np.stack(self.keys), np.stack(self.values)
        mixed = np.empty((heads, 256))
        for n in range(heads):
            m = n // (heads // key_heads)
            weights = np.exp(keys[:, m] @ query[n] / 16)
            mixed[n] = weights @ values[:, m] / weights.sum()
        x = x + self.weight(f"{attention}o_proj") @ (mixed * sigmoid(pair[:, 1])).reshape(-1)
        x = x + self.feed_forward(self.rms0(x, self.weight("layers.0.post_attention_layernorm")))
        return self.rms0(x, self.weight("norm"))


def expected(oracle: Oracle, hidden: torch.Tensor, axes: torch.Tensor) -> tuple[Transcription, Array]:
    """The aligned pass: tokens shifted left by one, hidden and positions not."""
    layer = Transcription(oracle)
    wide, tokens = hidden.double().numpy(), TOKENS.tolist()
    position = axes.double().numpy()
    return layer, np.stack([layer.column(t, tokens[t + 1], wide[t], position[:, t]) for t in range(len(wide))])


def target_hidden(oracle: Oracle) -> torch.Tensor:
    model = oracle.ours()
    (hidden,) = step(model, new_pools(model), [(Lane([0, 1], 0), TOKENS[:-1])])
    return hidden


@pytest.mark.parametrize("media", [False, True], ids=["text", "three axes"])
@pytest.mark.parametrize("sizes", [[90], [1, 64, 25], [30, 30, 30]], ids=str)
def test_aligned_pass(oracle: Oracle, sizes: list[int], media: bool) -> None:
    hidden, layer = target_hidden(oracle), oracle.mtp()
    axes = positions(0, 90) + (torch.tensor([[0], [3], [11]]) if media else 0)
    pools = layer.new_pools(4, kv_dtype=torch.float32)
    parts, begin = [], 0
    for size in sizes:
        end = begin + size
        batch = Batch(TOKENS[begin + 1 : end + 1], axes[:, begin:end], [Segment(0, size, begin, [2, 0], 0)])
        with torch.inference_mode():
            parts.append(layer.forward(batch, hidden[begin:end], pools))
        begin = end
    _, theirs = expected(oracle, hidden, axes)
    np.testing.assert_allclose(torch.cat(parts).numpy(), theirs, atol=1e-4)


def test_drafts_feed_on_their_own_hidden_vector(oracle: Oracle) -> None:
    hidden, layer = target_hidden(oracle), oracle.mtp()
    model, pools = oracle.ours(), layer.new_pools(4, kv_dtype=torch.float32)
    with torch.inference_mode():
        aligned = Batch(TOKENS[1:], positions(0, 90), [Segment(0, 90, 0, [1, 3], 0)])
        ours = layer.forward(aligned, hidden, pools)[-1:]
    reference, columns = expected(oracle, hidden, positions(0, 90))
    theirs = columns[-1]
    head: Any = reference.state["lm_head.weight"][:TOKEN_COUNT]
    drafts = []
    for slot in range(90, 94):
        logits = head @ theirs
        with torch.inference_mode():
            np.testing.assert_allclose(model.logits(ours)[0].numpy(), logits, atol=2e-4)
            draft = model.logits(ours).argmax(-1)
            drafts.append(int(draft))
            assert drafts[-1] == int(logits.argmax())
            batch = Batch(draft, positions(slot, slot + 1), [Segment(0, 1, slot, [1, 3], 0)])
            ours = layer.forward(batch, ours, pools)
        theirs = reference.column(slot, drafts[-1], theirs, np.full(3, float(slot)))
        np.testing.assert_allclose(ours[0].numpy(), theirs, atol=1e-4)
    assert len(set(drafts)) > 1


def test_hidden_must_match_the_columns(oracle: Oracle) -> None:
    layer = oracle.mtp()
    batch = Batch(TOKENS[1:3], positions(0, 2), [Segment(0, 2, 0, [0], 0)])
    with pytest.raises(ValueError, match="hidden is"):
        layer.forward(batch, torch.zeros(3, oracle.config.hidden_size), layer.new_pools(1, kv_dtype=torch.float32))
