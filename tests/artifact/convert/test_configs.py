"""config.json becomes component configs, or a refusal that names the setting."""

from typing import Any

import pytest

from engine.artifact.convert.configs import read_configs
from engine.artifact.convert.sources import CheckpointError
from engine.exits import ArtifactError, ConfigurationError
from tests.artifact.convert.published import text_config, vision_config


def checkpoint_config(*, moe: bool) -> dict[str, Any]:
    """A config.json as Qwen writes it for its vision-language models."""
    text = text_config(moe=moe) | {
        "rms_norm_eps": 1e-06,
        "hidden_act": "silu",
        "attention_bias": False,
        "attn_output_gate": True,
        "mamba_ssm_dtype": "float32",
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "full_attention_interval": 4,
        "rope_parameters": {
            "mrope_interleaved": True,
            "mrope_section": [11, 11, 10],
            "partial_rotary_factor": 0.25,
            "rope_theta": 10000000,
            "rope_type": "default",
        },
    }
    del text["architectures"]
    name = "Qwen3_5MoeForConditionalGeneration" if moe else "Qwen3_5ForConditionalGeneration"
    vision = vision_config(moe=moe) | {
        "model_type": "qwen3_5",
        "in_channels": 3,
        "hidden_act": "gelu_pytorch_tanh",
        "deepstack_visual_indexes": [],
        "out_hidden_size": text["hidden_size"],
    }
    return {"architectures": [name], "text_config": text, "vision_config": vision, "tie_word_embeddings": False}


@pytest.mark.parametrize("moe", [False, True])
def test_published_configs(moe: bool) -> None:
    found = read_configs(checkpoint_config(moe=moe), ("text", "mtp", "vision"))
    assert found.records["text"] == text_config(moe=moe)
    assert found.records["vision"] == vision_config(moe=moe)
    assert found.records["mtp"] == {"architectures": ["Qwen3_5MoeMTP" if moe else "Qwen3_5MTP"]}
    assert found.prefix == "model.language_model."
    assert found.ignored == ()


def test_layer_types_from_the_interval() -> None:
    config = checkpoint_config(moe=False)
    del config["text_config"]["layer_types"]
    assert read_configs(config, ("text",)).records["text"] == text_config(moe=False)


def test_text_only_checkpoint() -> None:
    config = checkpoint_config(moe=False)["text_config"] | {"architectures": ["Qwen3_5ForCausalLM"], "frobnicate": 3}
    found = read_configs(config, ("text",))
    assert found.prefix == "model."
    assert found.ignored == ("frobnicate",)
    with pytest.raises(CheckpointError, match="no vision_config"):
        read_configs(config, ("text", "vision"))


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("text_config", {"hidden_act": "gelu"}, "hidden_act is 'gelu'; this version has only 'silu'"),
    ("text_config", {"attention_bias": True}, "attention_bias is True"),
    ("text_config", {"attn_output_gate": False}, "attn_output_gate is False"),
    ("text_config", {"mamba_ssm_dtype": "bfloat16"}, "mamba_ssm_dtype is 'bfloat16'"),
    ("text_config", {"mtp_num_hidden_layers": 2}, "mtp_num_hidden_layers is 2"),
    ("text_config", {"mtp_use_dedicated_embeddings": True}, "mtp_use_dedicated_embeddings is True"),
    ("text_config", {"tie_word_embeddings": True}, "tie_word_embeddings is False for the model and True"),
    ("text_config", {"num_key_value_heads": 5}, "24 attention heads are not a multiple of 5"),
    ("text_config", {"full_attention_interval": 4, "head_dim": None}, "head_dim is None"),
    ("text_config", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e7}}, "rope_type is 'yarn'"),
    ("text_config", {"rope_parameters": {"mrope_interleaved": False}}, "mrope_interleaved is False"),
    ("text_config", {"rope_parameters": {"attention_factor": 2.0}}, "rope_parameters has 'attention_factor'"),
    ("text_config", {"rope_parameters": {"rope_theta": 1e7}}, "partial_rotary_factor is None"),
    ("vision_config", {"in_channels": 1}, "in_channels is 1"),
    ("vision_config", {"hidden_act": "silu"}, "hidden_act is 'silu'"),
    ("vision_config", {"deepstack_visual_indexes": [5]}, r"deepstack_visual_indexes is \[5\]"),
    ("vision_config", {"out_hidden_size": 64}, "out_hidden_size is 64"),
    ("vision_config", {"num_position_embeddings": 2305}, "2305 is not a square"),
    ("", {"architectures": ["LlamaForCausalLM"]}, "architectures is .*LlamaForCausalLM.*; known: Qwen3_5"),
    ("", {"quantization_config": {"quant_method": "fp8"}}, "quantization_config is set"),
]


@pytest.mark.parametrize(("part", "change", "message"), REFUSED)
def test_unsupported_settings(part: str, change: dict[str, Any], message: str) -> None:
    config = checkpoint_config(moe=False)
    (config[part] if part else config).update(change)
    with pytest.raises(ArtifactError, match=message):
        read_configs(config, ("text", "mtp", "vision"))


def test_missing_setting() -> None:
    config = checkpoint_config(moe=False)
    del config["text_config"]["hidden_size"], config["text_config"]["intermediate_size"]
    with pytest.raises(CheckpointError, match="lacks hidden_size, intermediate_size"):
        read_configs(config, ("text",))


@pytest.mark.parametrize("component", ["dflash", "dflash2", "proposal", "audio"])
def test_components_that_cannot_be_converted(component: str) -> None:
    with pytest.raises(ConfigurationError, match=f"component '{component}' cannot be converted; text, mtp, vision can"):
        read_configs(checkpoint_config(moe=False), ("text", component))
