"""Which logical parameters an object of version 2 holds, by its name (spec/artifact.md §1.6.1)."""

import re
from collections.abc import Sequence

_BLOCK = re.compile(r"((?:text|vision|dflash|dflash2)/layers/\d+/|mtp/layer/)(.+)")
_NORM = re.compile(r"(.*/norm\d?)/(weight|bias)")

_WHOLE = {"text/draft_head": "proposal/head", "text/draft_head_token_ids": "proposal/token_ids"}

_FUSED = {
    "attention/query_key": "attention/query attention/key",
    "attention/gate_value": "attention/gate attention/value",
    "attention/query_key_gate_value": "attention/query attention/key attention/gate attention/value",
    "attention/query_key_value": "attention/query attention/key attention/value",
    "attention/qkv": "attention/query attention/key attention/value",
    "attention/qkv_bias": "attention/query_bias attention/key_bias attention/value_bias",
    "gdn/query_key": "gdn/query gdn/key",
    "gdn/value_z": "gdn/value gdn/z",
    "gdn/query_key_value_z": "gdn/query gdn/key gdn/value gdn/z",
    "gdn/a_b_projection": "gdn/a_projection gdn/b_projection",
    "mlp/gate_up": "mlp/gate mlp/up",
    "moe/router_shared_gate": "moe/router moe/shared_score",
    "moe/shared_gate_up": "moe/shared/gate moe/shared/up",
    "moe/shared_down": "moe/shared/down",
}
_EXPERTS = {"moe/routed_gate_up": ("gate", "up"), "moe/routed_down": ("down",)}
_SITES = {
    "attention/input_projection": "attention/query attention/key attention/gate attention/value",
    "gdn/input_projection": "gdn/query gdn/key gdn/value gdn/z",
    "attention/output_projection": "attention/output",
    "gdn/output_projection": "gdn/output",
    "mlp/gate_up_projection": "mlp/gate mlp/up",
    "mlp/down_projection": "mlp/down",
}


def parameters_of(name: str, experts: int) -> Sequence[str]:
    """The parameters whose rows the tensor `name` holds one behind the other. A model has `experts` experts.

    A name that is not fused stands for itself; whether there is such a parameter is for the caller to find out.
    """
    block, role = _split(name)
    if role in _FUSED:
        return [block + part for part in _FUSED[role].split()]
    if role in _EXPERTS:
        return [f"{block}moe/experts/{expert}/{part}" for expert in range(experts) for part in _EXPERTS[role]]
    norm = _NORM.fullmatch(name)
    if norm and name.startswith("vision/"):
        return [f"{norm[1]}_{norm[2]}"]
    return [_WHOLE.get(name, block + role)]


def divided_by(site: str) -> Sequence[str]:
    """The parameters whose input the activation divisor of `site` divides; none when there is no such site."""
    block, role = _split(site)
    return [block + part for part in _SITES.get(role, "").split()]


def _split(name: str) -> tuple[str, str]:
    match = _BLOCK.fullmatch(name)
    if match is None:
        return "", name
    return match[1].replace("mtp/layer/", "mtp/layers/0/"), match[2]
