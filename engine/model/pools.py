"""The tensors that outlive a forward pass: key-value pages and recurrent states. Bookkeeping is elsewhere."""

from dataclasses import dataclass

import torch

from engine.artifact.config import TextConfig
from kernels.attention import PAGE_TOKENS


@dataclass(frozen=True, kw_only=True)
class Pools:
    """Key-value pages and state slots of all lanes.

    Layers are numbered among their own kind, in model order.

    Attributes:
        keys: [attention layer, page, 64, KV heads, head dim], after head norm and rotation.
        values: same shape, as projected.
        recurrent: [linear layer, slot, value heads, value dim, key dim]; float32, or float16 as storage only.
        convolution: [linear layer, slot, kernel - 1, channels], the last columns before the convolution, oldest first.
    """

    keys: torch.Tensor
    values: torch.Tensor
    recurrent: torch.Tensor
    convolution: torch.Tensor

    @classmethod
    def zeros(
        cls,
        config: TextConfig,
        *,
        attention_layers: int,
        linear_layers: int,
        pages: int,
        states: int,
        kv_dtype: torch.dtype,
        state_dtype: torch.dtype,
        column_dtype: torch.dtype,
        device: torch.device,
    ) -> "Pools":
        """Zeroed pools for the given numbers of layers; `column_dtype` is that of activations."""
        plane = (attention_layers, pages, PAGE_TOKENS, config.num_key_value_heads, config.head_dim)
        matrix = (config.linear_num_value_heads, config.linear_value_head_dim, config.linear_key_head_dim)
        past = (config.linear_conv_kernel_dim - 1, config.conv_channels)
        return cls(
            keys=torch.zeros(plane, dtype=kv_dtype, device=device),
            values=torch.zeros(plane, dtype=kv_dtype, device=device),
            recurrent=torch.zeros((linear_layers, states, *matrix), dtype=state_dtype, device=device),
            convolution=torch.zeros((linear_layers, states, *past), dtype=column_dtype, device=device),
        )

    @property
    def pages(self) -> int:
        """Pages of 64 tokens."""
        return self.keys.shape[1]

    @property
    def states(self) -> int:
        """State slots."""
        return self.recurrent.shape[1]

    @property
    def bytes(self) -> int:
        """Bytes of all four tensors."""
        return sum(tensor.nbytes for tensor in (self.keys, self.values, self.recurrent, self.convolution))

    def reset_state(self, slot: int) -> None:
        """Zero one state slot, as at the start of a sequence."""
        self.recurrent[:, slot].zero_()
        self.convolution[:, slot].zero_()
