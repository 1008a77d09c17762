"""Small random transformers models, the oracle of the target mathematics, and their parameters under our names."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from engine.artifact.config import TextConfig, parse_text_config

Array = npt.NDArray[Any]

FAMILIES = ("dense", "moe")
VOCABULARY, TOKEN_COUNT = 500, 487
LAYERS = ["linear_attention", "full_attention", "linear_attention", "full_attention"]

# Head dims are the real ones. So are the numbers of value heads a key head: 3 (27B) and 2 (35B).
_COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "num_hidden_layers": len(LAYERS),
    "layer_types": LAYERS,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "head_dim": 256,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "tie_word_embeddings": False,
}
_FAMILY: dict[str, dict[str, Any]] = {
    "dense": {
        "hidden_size": 96,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 6,
        "intermediate_size": 160,
    },
    "moe": {
        "hidden_size": 64,
        "num_attention_heads": 8,
        "num_key_value_heads": 1,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "num_experts": 16,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 48,
        "shared_expert_intermediate_size": 32,
    },
}
_NAMES = {"dense": ("Qwen3_5ForCausalLM", "qwen3_5_text"), "moe": ("Qwen3_5MoeForCausalLM", "qwen3_5_moe_text")}
_ROPE = {"rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_section": [11, 11, 10]}


def text_config(family: str) -> TextConfig:
    """The small model's config as an artifact would record it."""
    architecture, model_type = _NAMES[family]
    record = {**_COMMON, **_FAMILY[family], "rope_parameters": _ROPE}
    return parse_text_config({**record, "architectures": [architecture], "model_type": model_type})


def transformers_model(family: str) -> nn.Module:
    """A random model in float32 whose every weight is a bfloat16 number, so that both dtypes run the same weights.

    Norm weights, A_log and dt_bias are moved off their initial values: at 0 and 1 a mistaken norm kind is invisible.
    """
    import transformers

    config_class = {"dense": transformers.Qwen3_5TextConfig, "moe": transformers.Qwen3_5MoeTextConfig}[family]
    config = config_class(
        **_COMMON, **_FAMILY[family], rope_parameters={**_ROPE, "rope_type": "default", "mrope_interleaved": True}
    )
    generator = torch.Generator().manual_seed(20)
    model: nn.Module = getattr(transformers, _NAMES[family][0])(config).eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith("A_log"):
            parameter.copy_(0.5 * noise - 1.0)
        elif name.endswith("dt_bias"):
            parameter.copy_(noise)
        elif name.endswith("linear_attn.norm.weight"):
            parameter.copy_(1 + 0.3 * noise)
        elif "norm" in name:
            parameter.copy_(0.3 * noise)
        elif name.endswith("conv1d.weight"):
            parameter.copy_(0.5 * noise)
        elif "embed_tokens" in name:
            parameter.copy_(noise)
        elif name.endswith("lm_head.weight"):
            parameter.copy_(4 * noise / parameter.shape[-1] ** 0.5)
        else:
            parameter.copy_(noise / parameter.shape[-1] ** 0.5)
        parameter.copy_(parameter.to(torch.bfloat16))
    return model


def mtp_state(config: TextConfig) -> dict[str, torch.Tensor]:
    """Random `mtp.*` tensors under checkpoint names; transformers has no such layer."""
    generator = torch.Generator().manual_seed(21)
    hidden, dim = config.hidden_size, config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "mtp.fc.weight": (hidden, 2 * hidden),
        "mtp.pre_fc_norm_embedding.weight": (hidden,),
        "mtp.pre_fc_norm_hidden.weight": (hidden,),
        "mtp.norm.weight": (hidden,),
        "mtp.layers.0.input_layernorm.weight": (hidden,),
        "mtp.layers.0.post_attention_layernorm.weight": (hidden,),
        "mtp.layers.0.self_attn.q_proj.weight": (2 * config.query_size, hidden),
        "mtp.layers.0.self_attn.k_proj.weight": (config.key_value_size, hidden),
        "mtp.layers.0.self_attn.v_proj.weight": (config.key_value_size, hidden),
        "mtp.layers.0.self_attn.o_proj.weight": (hidden, config.query_size),
        "mtp.layers.0.self_attn.q_norm.weight": (dim,),
        "mtp.layers.0.self_attn.k_norm.weight": (dim,),
    }
    mlp = "mtp.layers.0.mlp."
    if config.experts is None:
        assert config.intermediate_size is not None
        shapes |= {
            f"{mlp}gate_proj.weight": (config.intermediate_size, hidden),
            f"{mlp}up_proj.weight": (config.intermediate_size, hidden),
            f"{mlp}down_proj.weight": (hidden, config.intermediate_size),
        }
    else:
        experts = config.experts
        width, shared = experts.intermediate_size, experts.shared_intermediate_size
        shapes |= {
            f"{mlp}gate.weight": (experts.count, hidden),
            f"{mlp}shared_expert_gate.weight": (1, hidden),
            f"{mlp}experts.gate_up_proj": (experts.count, 2 * width, hidden),
            f"{mlp}experts.down_proj": (experts.count, hidden, width),
            f"{mlp}shared_expert.gate_proj.weight": (shared, hidden),
            f"{mlp}shared_expert.up_proj.weight": (shared, hidden),
            f"{mlp}shared_expert.down_proj.weight": (hidden, shared),
        }
    state = {}
    for name, shape in shapes.items():
        noise = torch.randn(shape, generator=generator)
        scaled = 0.3 * noise if len(shape) == 1 else noise / shape[-1] ** 0.5
        state[name] = scaled.to(torch.bfloat16).float()
    return state


class StateDictionarySource:
    """A ParameterSource over checkpoint tensors (names: spec/model.md §9.1; transforms: spec/artifact.md §4.2)."""

    def __init__(self, state: Mapping[str, torch.Tensor], config: TextConfig) -> None:
        self._state = {name: tensor.numpy() for name, tensor in state.items()}
        self._config = config

    def values(self, name: str) -> Array:
        """The parameter, as an array that may not be written, like one mapped from a file."""
        values = self._find(name).view()
        values.flags.writeable = False
        return values

    def _find(self, name: str) -> Array:
        whole = {
            "text/token_embedding": "model.embed_tokens.weight",
            "text/output_head": "lm_head.weight",
            "text/final_norm": "model.norm.weight",
            "mtp/input_projection": "mtp.fc.weight",
            "mtp/embedding_norm": "mtp.pre_fc_norm_embedding.weight",
            "mtp/hidden_norm": "mtp.pre_fc_norm_hidden.weight",
            "mtp/final_norm": "mtp.norm.weight",
        }
        if name in whole:
            return self._state[whole[name]]
        component, _, index, parameter = name.split("/", 3)
        prefix = f"{'model' if component == 'text' else 'mtp'}.layers.{index}."
        return self._block(prefix, parameter)

    def _block(self, prefix: str, parameter: str) -> Array:
        state, config = self._state, self._config
        direct = {
            "input_norm": "input_layernorm.weight",
            "post_attention_norm": "post_attention_layernorm.weight",
            "attention/key": "self_attn.k_proj.weight",
            "attention/value": "self_attn.v_proj.weight",
            "attention/output": "self_attn.o_proj.weight",
            "attention/query_norm": "self_attn.q_norm.weight",
            "attention/key_norm": "self_attn.k_norm.weight",
            "gdn/a_log": "linear_attn.A_log",
            "gdn/dt_bias": "linear_attn.dt_bias",
            "gdn/a_projection": "linear_attn.in_proj_a.weight",
            "gdn/b_projection": "linear_attn.in_proj_b.weight",
            "gdn/z": "linear_attn.in_proj_z.weight",
            "gdn/norm": "linear_attn.norm.weight",
            "gdn/output": "linear_attn.out_proj.weight",
            "mlp/gate": "mlp.gate_proj.weight",
            "mlp/up": "mlp.up_proj.weight",
            "mlp/down": "mlp.down_proj.weight",
            "moe/router": "mlp.gate.weight",
            "moe/shared_score": "mlp.shared_expert_gate.weight",
            "moe/shared/gate": "mlp.shared_expert.gate_proj.weight",
            "moe/shared/up": "mlp.shared_expert.up_proj.weight",
            "moe/shared/down": "mlp.shared_expert.down_proj.weight",
        }
        if parameter in direct:
            return state[prefix + direct[parameter]]
        kind, part = parameter.rsplit("/", 1)
        if kind == "attention":
            rows = state[f"{prefix}self_attn.q_proj.weight"].reshape(-1, 2, config.head_dim, config.hidden_size)
            return rows[:, ("query", "gate").index(part)].reshape(config.query_size, config.hidden_size)
        if parameter == "gdn/convolution":
            return state[f"{prefix}linear_attn.conv1d.weight"].transpose(2, 0, 1)[:, :, 0]
        if kind == "gdn":
            key = config.linear_key_size
            blocks = np.split(state[f"{prefix}linear_attn.in_proj_qkv.weight"], [key, 2 * key])
            return blocks[("query", "key", "value").index(part)]
        expert = int(kind.rsplit("/", 1)[1])
        if part == "down":
            return np.asarray(state[f"{prefix}mlp.experts.down_proj"][expert])
        return np.split(state[f"{prefix}mlp.experts.gate_up_proj"][expert], 2)[("gate", "up").index(part)]


def relative_distance(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Relative L2 distance."""
    return float((ours.double() - theirs.double()).norm() / theirs.double().norm())
