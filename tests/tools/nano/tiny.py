"""A model of every kind of layer that a CPU trains in a minute or two."""

from typing import Any

from tools.nano.config import NANO

TINY: dict[str, Any] = {
    **NANO,
    "hidden_size": 96,
    "num_hidden_layers": 4,
    "layer_types": NANO["layer_types"][:4],
    "head_dim": 64,
    "intermediate_size": 128,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "rope_parameters": {**NANO["rope_parameters"], "partial_rotary_factor": 0.5, "mrope_section": [6, 5, 5]},
}

SMALLEST: dict[str, Any] = {
    **TINY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "intermediate_size": 64,
}
