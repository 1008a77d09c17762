"""Gated DeltaNet: chunks against the recurrence against a float64 loop (spec/model.md §5.1, §17)."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from kernels.delta_net import (
    causal_convolution,
    chunked_delta_rule,
    delta_rule,
    gates,
    l2_norm,
    recurrent_delta_rule,
)
from kernels.delta_net.reference import RECURRENT_TOKENS

Array = npt.NDArray[np.float64]
Arguments = dict[str, torch.Tensor]
LENGTHS = (1, 2, 15, 16, 63, 64, 65, 128, 200)


def arguments(
    tokens: int, *, key_heads: int = 2, ratio: int = 3, key: int = 16, value: int = 24, strength: float = 1.0
) -> Arguments:
    """Random inputs in float64; `strength` scales the log-decay."""
    generator = torch.Generator().manual_seed(tokens)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    heads = key_heads * ratio
    return {
        "query": l2_norm(normal(tokens, key_heads, key)),
        "key": l2_norm(normal(tokens, key_heads, key)),
        "value": normal(tokens, heads, value),
        "decay": -strength * normal(tokens, heads).exp(),
        "beta": normal(tokens, heads).sigmoid(),
        "state": normal(heads, value, key),
    }


def loop(query: Array, key: Array, value: Array, decay: Array, beta: Array, state: Array) -> tuple[Array, Array]:
    """The formulas of spec/model.md §5.1, head by head."""
    tokens, heads, _ = value.shape
    ratio = heads // key.shape[1]
    out, final = np.empty_like(value), state.copy()
    for n in range(heads):
        m, S = n // ratio, final[n]
        for t in range(tokens):
            S = np.exp(decay[t, n]) * S
            r = S @ key[t, m]
            d = beta[t, n] * (value[t, n] - r)
            S = S + np.outer(d, key[t, m])
            out[t, n] = (S @ query[t, m]) / np.sqrt(key.shape[2])
        final[n] = S
    return out, final


def exact(inputs: Arguments) -> tuple[Array, Array]:
    values: dict[str, Any] = {name: tensor.numpy() for name, tensor in inputs.items()}
    return loop(**values)


@pytest.mark.parametrize("form", [recurrent_delta_rule, chunked_delta_rule])
@pytest.mark.parametrize("tokens", LENGTHS)
@pytest.mark.parametrize("strength", [0.01, 1.0, 50.0])
def test_both_forms_equal_the_loop(form: Any, tokens: int, strength: float) -> None:
    inputs = arguments(tokens, strength=strength)
    expected_out, expected_state = exact(inputs)
    out, state = form(**inputs)
    np.testing.assert_allclose(out.numpy(), expected_out, atol=1e-11)
    np.testing.assert_allclose(state.numpy(), expected_state, atol=1e-11)
    out, state = form(**{name: tensor.float() for name, tensor in inputs.items()})
    assert out.dtype == state.dtype == torch.float32
    np.testing.assert_allclose(out.numpy(), expected_out, atol=2e-5)
    np.testing.assert_allclose(state.numpy(), expected_state, atol=5e-5)


def test_the_real_head_dims() -> None:
    inputs = arguments(130, key=128, value=128)
    expected_out, expected_state = exact(inputs)
    out, state = chunked_delta_rule(**{name: tensor.float() for name, tensor in inputs.items()})
    np.testing.assert_allclose(out.numpy(), expected_out, atol=2e-5)
    np.testing.assert_allclose(state.numpy(), expected_state, atol=5e-5)


@pytest.mark.parametrize("sizes", [[1, 129], [64, 66], [100, 1, 29], [7] * 18 + [4]], ids=str)
def test_a_split_hands_the_state_over(sizes: list[int]) -> None:
    inputs = arguments(130)
    whole, final = delta_rule(**inputs)
    state, parts, begin = inputs.pop("state"), [], 0
    for size in sizes:
        part, state = delta_rule(**{name: tensor[begin : begin + size] for name, tensor in inputs.items()}, state=state)
        parts.append(part)
        begin += size
    assert begin == 130
    torch.testing.assert_close(torch.cat(parts), whole, rtol=0, atol=1e-11)
    torch.testing.assert_close(state, final, rtol=0, atol=1e-11)


def test_inputs_are_left_alone() -> None:
    for tokens in (3, 70):
        inputs = arguments(tokens)
        before = {name: tensor.clone() for name, tensor in inputs.items()}
        delta_rule(**inputs)
        assert all(torch.equal(tensor, before[name]) for name, tensor in inputs.items())


@pytest.mark.parametrize("tokens", [RECURRENT_TOKENS - 1, RECURRENT_TOKENS])
def test_form_by_number_of_tokens(tokens: int) -> None:
    inputs = {name: tensor.float() for name, tensor in arguments(tokens).items()}
    form = recurrent_delta_rule if tokens < RECURRENT_TOKENS else chunked_delta_rule
    assert torch.equal(delta_rule(**inputs)[0], form(**inputs)[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sizes", [[1] * 40, [2, 38], [3, 1, 36], [39, 1]], ids=str)
def test_convolution_history_is_exact_across_splits(dtype: torch.dtype, sizes: list[int]) -> None:
    generator = torch.Generator().manual_seed(4)
    columns = torch.randn(40, 37, generator=generator).to(dtype)
    weight = torch.randn(4, 37, generator=generator)
    whole, final = causal_convolution(columns, torch.zeros(3, 37, dtype=dtype), weight)
    past, parts = torch.zeros(3, 37, dtype=dtype), []
    for part in columns.split_with_sizes(sizes):
        out, past = causal_convolution(part, past, weight)
        assert past.shape == (3, 37)
        parts.append(out)
    torch.testing.assert_close(torch.cat(parts), whole, rtol=5e-7 if dtype == torch.float32 else 0, atol=0)
    assert torch.equal(past, final)
    assert torch.equal(past, columns[-3:])
    assert whole.dtype == past.dtype == dtype


def test_convolution_against_its_formula() -> None:
    generator = torch.Generator().manual_seed(5)
    columns, weight = torch.randn(9, 8, generator=generator), torch.randn(4, 8, generator=generator)
    padded = np.concatenate([np.zeros((3, 8)), columns.double().numpy()])
    expected = np.empty((9, 8))
    for t in range(9):
        total = sum(weight[j].double().numpy() * padded[t + j] for j in range(4))
        expected[t] = total / (1 + np.exp(-total))
    np.testing.assert_allclose(causal_convolution(columns, torch.zeros(3, 8), weight)[0].numpy(), expected, atol=1e-6)


def test_gates_against_their_formulas() -> None:
    generator = torch.Generator().manual_seed(6)
    a, b = 10 * torch.randn(2, 7, 5, generator=generator)
    a_log, dt_bias = torch.randn(2, 5, generator=generator)
    decay, beta = gates(a.bfloat16(), b.bfloat16(), a_log, dt_bias)
    assert decay.dtype == beta.dtype == torch.float32
    wide_a, wide_b = a.bfloat16().double().numpy(), b.bfloat16().double().numpy()
    expected = -np.exp(a_log.double().numpy()) * np.logaddexp(0, wide_a + dt_bias.double().numpy())
    np.testing.assert_allclose(decay.numpy(), expected, rtol=1e-5)
    np.testing.assert_allclose(beta.numpy(), 1 / (1 + np.exp(-wide_b)), rtol=1e-5)
    assert (decay <= 0).all()


def test_l2_norm_keeps_zero_and_adds_epsilon_to_the_sum() -> None:
    assert torch.equal(l2_norm(torch.zeros(2, 8)), torch.zeros(2, 8))
    small = torch.full((1, 4), 5e-4)  # a sum of squares of exactly one epsilon
    torch.testing.assert_close(l2_norm(small), small / (2e-6**0.5))


@pytest.mark.parametrize("form", [recurrent_delta_rule, chunked_delta_rule])
def test_gradients_of_the_rule(form: Any) -> None:
    inputs = arguments(5, key_heads=1, ratio=2, key=3, value=2)
    names = list(inputs)

    def by_position(*tensors: torch.Tensor) -> Any:
        return form(**dict(zip(names, tensors, strict=True)))

    assert torch.autograd.gradcheck(by_position, tuple(tensor.requires_grad_() for tensor in inputs.values()))


def test_gradients_across_chunks_are_those_of_the_recurrence() -> None:
    grads = []
    for form in (recurrent_delta_rule, chunked_delta_rule):
        inputs = {name: tensor.requires_grad_() for name, tensor in arguments(130, key=8, value=8).items()}
        out, state = form(**inputs)
        (out.sin().sum() + state.sin().sum()).backward()  # type: ignore[no-untyped-call]
        grads.append([tensor.grad for tensor in inputs.values()])
    for ours, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)


def test_gradients_of_the_surroundings() -> None:
    generator = torch.Generator().manual_seed(7)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()

    assert torch.autograd.gradcheck(causal_convolution, (normal(5, 3), normal(3, 3), normal(4, 3)))
    assert torch.autograd.gradcheck(gates, (normal(4, 3), normal(4, 3), normal(3), normal(3)))
    assert torch.autograd.gradcheck(l2_norm, (normal(4, 3),))
