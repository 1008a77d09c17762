"""The embedded models for training: both families, differentiable, over packed rows (spec/model.md §3 to §8).

The arithmetic is that of `engine.model`, built from the same kernel references where a column is independent of the
others; attention and DeltaNet work on whole rows of documents. Modules are named so that the state dictionary is the
Hugging Face checkpoint, and a test holds this forward pass to the engine's on the exported artifact.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from kernels.delta_net import CHUNK_TOKENS, gates, l2_norm
from kernels.linear import linear
from kernels.moe import route
from kernels.norm import rms0, rms1_gated
from kernels.rotary import angles, inverse_frequencies, rotate
from kernels.swiglu import swiglu
from tools.nano.delta_net import Borders, find_borders, packed_convolution, packed_delta_rule

Config = Mapping[str, Any]


@dataclass(frozen=True)
class Packing:
    """Where documents lie in the rows of a batch, worked out once for all layers.

    Attributes:
        documents: [B, L], the document number of each token.
        borders: for DeltaNet.
        visible: bool [B, 1, L, L]: what each token attends to; None when each row is one document.
        rotation: cosine and sine, float32 [B * L, pairs].
    """

    documents: torch.Tensor
    borders: Borders
    visible: torch.Tensor | None
    rotation: tuple[torch.Tensor, torch.Tensor]


class Norm(nn.Module):
    """Zero-centred RMS norm."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))
        self.epsilon = epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return rms0(x, self.weight, self.epsilon)


class Weight(nn.Module):
    """A bare tensor called `weight`, for parameters that are no projection."""

    def __init__(self, values: torch.Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(values)


class Projection(nn.Module):
    """A linear map without bias, drawn with deviation `scale` / sqrt(columns)."""

    def __init__(self, columns: int, rows: int, scale: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(rows, columns) * scale / math.sqrt(columns))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return linear(x, self.weight)


class Attention(nn.Module):
    """Full attention with an output gate."""

    def __init__(self, config: Config, scale: float) -> None:
        super().__init__()
        hidden, epsilon = config["hidden_size"], config["rms_norm_eps"]
        self.heads, self.key_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.dim = config["head_dim"]
        self.q_proj = Projection(hidden, 2 * self.heads * self.dim)  # head by head: query, then gate
        self.k_proj = Projection(hidden, self.key_heads * self.dim)
        self.v_proj = Projection(hidden, self.key_heads * self.dim)
        self.q_norm = Norm(self.dim, epsilon)
        self.k_norm = Norm(self.dim, epsilon)
        self.o_proj = Projection(self.heads * self.dim, hidden, scale)

    def project(self, x: torch.Tensor, packing: Packing) -> tuple[torch.Tensor, ...]:
        """Query [B, Hq, L, D], key and value [B, Hkv, L, D], and gate [B, L, Hq · D]."""
        rows, length = x.shape[:2]
        both = self.q_proj(x).view(rows * length, self.heads, 2 * self.dim)
        query, gate = both.chunk(2, dim=-1)
        query = rotate(self.q_norm(query), *packing.rotation)
        key = rotate(self.k_norm(self.k_proj(x).view(rows * length, self.key_heads, self.dim)), *packing.rotation)
        value = self.v_proj(x).view(rows, length, self.key_heads, self.dim)

        def by_head(part: torch.Tensor) -> torch.Tensor:
            return part.reshape(rows, length, -1, self.dim).transpose(1, 2)

        return by_head(query), by_head(key), value.transpose(1, 2), gate.reshape(rows, length, -1)

    def finish(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        gate: torch.Tensor,
        visible: torch.Tensor | None,
    ) -> torch.Tensor:
        """Attend, gate and project back: [B, L, H]. Without `visible` every row is causal."""
        group = self.heads // self.key_heads
        mixed = functional.scaled_dot_product_attention(
            query,
            key.repeat_interleave(group, dim=1),
            value.repeat_interleave(group, dim=1),
            attn_mask=visible,
            is_causal=visible is None,
        )
        mixed = mixed.transpose(1, 2).flatten(2)
        output: torch.Tensor = self.o_proj((mixed.float() * gate.float().sigmoid()).to(mixed.dtype))
        return output

    def forward(self, x: torch.Tensor, packing: Packing) -> torch.Tensor:
        query, key, value, gate = self.project(x, packing)
        return self.finish(query, key, value, gate, packing.visible)


class DeltaNet(nn.Module):
    """Gated DeltaNet."""

    def __init__(self, config: Config, scale: float) -> None:
        super().__init__()
        hidden, self.epsilon = config["hidden_size"], config["rms_norm_eps"]
        self.key_heads, self.value_heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
        self.key_dim, self.value_dim = config["linear_key_head_dim"], config["linear_value_head_dim"]
        keys, values = self.key_heads * self.key_dim, self.value_heads * self.value_dim
        taps = config["linear_conv_kernel_dim"]
        self.in_proj_qkv = Projection(hidden, 2 * keys + values)
        self.in_proj_z = Projection(hidden, values)
        self.in_proj_a = Projection(hidden, self.value_heads)
        self.in_proj_b = Projection(hidden, self.value_heads)
        self.conv1d = Weight(torch.empty(2 * keys + values, 1, taps).uniform_(-1, 1) / math.sqrt(taps))
        # Decay rates a token from 1/1000 to 1, evenly in their logarithm: heads begin with memories of all lengths.
        self.A_log = nn.Parameter(torch.empty(self.value_heads).uniform_(1, 8).log())
        step = torch.exp(torch.empty(self.value_heads).uniform_(math.log(1e-3), math.log(1e-1)))
        self.dt_bias = nn.Parameter(step + torch.log(-torch.expm1(-step)))  # softplus of it is the step
        self.norm = Weight(torch.ones(self.value_dim))
        self.out_proj = Projection(values, hidden, scale)

    def forward(self, x: torch.Tensor, packing: Packing) -> torch.Tensor:
        rows, length = x.shape[:2]
        columns = packed_convolution(self.in_proj_qkv(x), self.conv1d.weight[:, 0].t(), packing.borders)
        keys = 2 * self.key_heads * self.key_dim
        query, key = l2_norm(columns[..., :keys].reshape(rows, length, 2 * self.key_heads, self.key_dim)).chunk(2, 2)
        decay, beta = gates(self.in_proj_a(x), self.in_proj_b(x), self.A_log, self.dt_bias)
        mixed = packed_delta_rule(
            query,
            key,
            columns[..., keys:].reshape(rows, length, self.value_heads, self.value_dim),
            decay=decay,
            beta=beta,
            borders=packing.borders,
        )
        z = self.in_proj_z(x).view(rows, length, self.value_heads, self.value_dim)
        output: torch.Tensor = self.out_proj(rms1_gated(mixed, z, self.norm.weight, self.epsilon).flatten(2))
        return output


class Dense(nn.Module):
    """SwiGLU."""

    def __init__(self, hidden: int, width: int, scale: float) -> None:
        super().__init__()
        self.gate_proj = Projection(hidden, width)
        self.up_proj = Projection(hidden, width)
        self.down_proj = Projection(width, hidden, scale)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.down_proj(swiglu(torch.cat((self.gate_proj(x), self.up_proj(x)), dim=-1)))
        return output


class Experts(nn.Module):
    """The stacked matrices of all routed experts."""

    def __init__(self, count: int, hidden: int, width: int, scale: float) -> None:
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.randn(count, 2 * width, hidden) / math.sqrt(hidden))
        self.down_proj = nn.Parameter(torch.randn(count, hidden, width) * scale / math.sqrt(width))


class Mixture(nn.Module):
    """Routed experts and a shared one.

    Every expert sees every token and the unchosen ones are weighted with zero: with 8 of 16 chosen that costs twice the
    least number of products and needs no sorting, and nothing on the device depends on the routing.

    Attributes:
        balance: after a forward pass, the load-balancing loss of it (Fedus et al., arXiv 2101.03961, summed over the
            chosen experts): 1 when every expert gets the same share.
    """

    balance: torch.Tensor

    def __init__(self, config: Config, scale: float) -> None:
        super().__init__()
        hidden = config["hidden_size"]
        self.per_token = config["num_experts_per_tok"]
        self.gate = Projection(hidden, config["num_experts"])
        self.experts = Experts(config["num_experts"], hidden, config["moe_intermediate_size"], scale)
        self.shared_expert = Dense(hidden, config["shared_expert_intermediate_size"], scale)
        self.shared_expert_gate = Projection(hidden, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shape, x = x.shape, x.flatten(0, -2)
        with torch.autocast(x.device.type, enabled=False):
            logits = self.gate(x.float())
        chosen, weights = route(logits, self.per_token)
        spread = torch.zeros_like(logits).scatter(1, chosen, weights)
        count = logits.shape[-1]
        share = torch.zeros_like(logits).scatter(1, chosen, 1.0).mean(0) * (count / self.per_token)
        self.balance = (share * logits.softmax(-1).mean(0)).sum()
        up = linear(x, self.experts.gate_up_proj.flatten(0, 1)).view(len(x), count, -1)
        product = (swiglu(up).float() * spread.unsqueeze(-1)).to(up.dtype)
        routed = linear(product.flatten(1), self.experts.down_proj.transpose(0, 1).flatten(1))
        shared = self.shared_expert_gate(x).float().sigmoid() * self.shared_expert(x)
        output: torch.Tensor = (routed + shared).view(shape)
        return output


class Block(nn.Module):
    """One decoder block."""

    def __init__(self, config: Config, kind: str) -> None:
        super().__init__()
        hidden, epsilon = config["hidden_size"], config["rms_norm_eps"]
        # Outputs are drawn small, so that the residual stream does not grow with depth.
        scale = 1 / math.sqrt(2 * config["num_hidden_layers"])
        self.input_layernorm = Norm(hidden, epsilon)
        self.self_attn: Attention
        self.linear_attn: DeltaNet
        if kind == "full_attention":
            self.self_attn = Attention(config, scale)
        else:
            self.linear_attn = DeltaNet(config, scale)
        self.full = kind == "full_attention"
        self.post_attention_layernorm = Norm(hidden, epsilon)
        self.mlp = (
            Mixture(config, scale) if "num_experts" in config else Dense(hidden, config["intermediate_size"], scale)
        )

    def forward(self, x: torch.Tensor, packing: Packing) -> torch.Tensor:
        mixer = self.self_attn if self.full else self.linear_attn
        x = x + mixer(self.input_layernorm(x), packing)
        return self.feed(x)

    def feed(self, x: torch.Tensor) -> torch.Tensor:
        """The feed-forward half."""
        output: torch.Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return output


class Decoder(nn.Module):
    """Embedding, blocks, final norm."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.embed_tokens = Weight(torch.randn(config["vocab_size"], config["hidden_size"]) * 0.5)
        self.layers = nn.ModuleList(Block(config, kind) for kind in config["layer_types"])
        self.norm = Norm(config["hidden_size"], config["rms_norm_eps"])


class Mtp(nn.Module):
    """The multi-token-prediction layer (spec/model.md §8)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        hidden, epsilon = config["hidden_size"], config["rms_norm_eps"]
        self.pre_fc_norm_embedding = Norm(hidden, epsilon)
        self.pre_fc_norm_hidden = Norm(hidden, epsilon)
        self.fc = Projection(2 * hidden, hidden)
        self.layers = nn.ModuleList([Block(config, "full_attention")])
        self.norm = Norm(hidden, epsilon)


class Nano(nn.Module):
    """A model of `tools.nano.config`, freshly drawn from torch's global generator."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = dict(config)
        self.model = Decoder(config)
        self.lm_head = Projection(config["hidden_size"], config["vocab_size"])
        self.mtp = Mtp(config)

    def pack(self, documents: torch.Tensor, *, whole_rows: bool = False) -> Packing:
        """Describe a batch whose tokens belong to `documents` [B, L]; L is a multiple of 64.

        Numbers are not negative and differ between neighbours in a row. With `whole_rows` every row is one document,
        whatever the numbers say: attention then needs no mask, and padding may only follow the text.

        Raises:
            ValueError: L is not a multiple of 64.
        """
        length = documents.shape[1]
        if length % CHUNK_TOKENS:
            raise ValueError(f"rows have {length} tokens; wanted a multiple of {CHUNK_TOKENS}")
        device = documents.device
        index = torch.arange(length, device=device)
        if whole_rows:
            documents = torch.zeros_like(documents)
        begins = functional.pad(documents[:, 1:] != documents[:, :-1], (1, 0), value=True)
        positions = index - torch.where(begins, index, 0).cummax(1).values
        rope = self.config["rope_parameters"]
        pairs = int(self.config["head_dim"] * rope["partial_rotary_factor"]) // 2
        # Text has the same position on all three axes, so any assignment of axes gives the same angles.
        axes = torch.zeros(pairs, dtype=torch.int64, device=device)
        frequencies = inverse_frequencies(rope["rope_theta"], 2 * pairs, device)
        visible = None
        if not whole_rows:
            visible = (documents.unsqueeze(-1) == documents.unsqueeze(-2)).tril().unsqueeze(1)
        return Packing(
            documents,
            find_borders(documents, self.config["linear_conv_kernel_dim"]),
            visible,
            angles(positions.flatten().expand(3, -1), axes, frequencies),
        )

    def forward(self, token_ids: torch.Tensor, packing: Packing) -> torch.Tensor:
        """Hidden vectors after the final norm, [B, L, H]."""
        x = functional.embedding(token_ids, self.model.embed_tokens.weight)
        for block in self.model.layers:
            x = block(x, packing)
        hidden: torch.Tensor = self.model.norm(x)
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Scores of the next token, [..., vocabulary]."""
        scores: torch.Tensor = self.lm_head(hidden)
        return scores

    def drafts(self, token_ids: torch.Tensor, hidden: torch.Tensor, packing: Packing, depth: int) -> list[torch.Tensor]:
        """Hidden vectors of `depth` draft steps, each [B, L, H]; at column s all of them guess token s + 2.

        Step 1 is the aligned pass: token s + 1 with the hidden vector of column s. Step j feeds on step j - 1 as the
        engine does when it drafts on (with the right token in place of a drafted one): at column s its hidden input is
        the output of step j - 1 at column s - 1, and the cache holds step 1 up to column s - j + 1, then one column of
        each later step. So step j means something from the j-th column of a document on.
        """
        mtp, block = self.mtp, self.mtp.layers[0]
        assert isinstance(block, Block)
        following = functional.pad(token_ids[:, 1:], (0, 1))
        embedded = mtp.pre_fc_norm_embedding(functional.embedding(following, self.model.embed_tokens.weight))
        steps: list[torch.Tensor] = []
        cached: list[tuple[torch.Tensor, torch.Tensor]] = []
        for step in range(1, depth + 1):
            x = mtp.fc(torch.cat((embedded, mtp.pre_fc_norm_hidden(hidden).to(embedded.dtype)), dim=-1))
            query, key, value, gate = block.self_attn.project(block.input_layernorm(x), packing)
            cached.append((key, value))
            visible = packing.visible if step == 1 else _draft_mask(packing, step)
            keys, values = (torch.cat(parts, dim=2) for parts in zip(*cached, strict=True))
            x = block.feed(x + block.self_attn.finish(query, keys, values, gate, visible))
            steps.append(mtp.norm(x))
            hidden = functional.pad(steps[-1][:, :-1], (0, 0, 1, 0))
        return steps

    def balance(self) -> torch.Tensor | None:
        """Mean load-balancing loss of the last forward pass over the mixture layers, or None without any."""
        found = [module.balance for module in self.modules() if isinstance(module, Mixture)]
        return torch.stack(found).mean() if found else None


def _draft_mask(packing: Packing, step: int) -> torch.Tensor:
    """What column s of draft step `step` sees of the keys of steps 1 .. step, side by side: [B, 1, L, step · L]."""
    documents = packing.documents
    same = documents.unsqueeze(-1) == documents.unsqueeze(-2)
    parts = [same.tril(1 - step)]
    for earlier in range(2, step + 1):
        back = earlier - step
        parts.append(same.tril(back).triu(back))
    return torch.cat(parts, dim=-1).unsqueeze(1)
