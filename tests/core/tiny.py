"""A tiny model configuration of the dense family."""

from engine.artifact.config import TextConfig


def tiny_config(**changes: int) -> TextConfig:
    """Two DeltaNet layers around one of attention."""
    fields: dict[str, object] = {
        "hidden_size": 32,
        "vocab_size": 304,
        "layer_types": ("linear_attention", "full_attention", "linear_attention"),
        "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
        "rms_norm_eps": 1e-6,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rope_theta": 10_000.0,
        "rotary_dim": 8,
        "mrope_section": (2, 1, 1),
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 8,
        "linear_num_value_heads": 4,
        "linear_value_head_dim": 8,
        "linear_conv_kernel_dim": 4,
        "intermediate_size": 64,
        "experts": None,
    }
    return TextConfig(**{**fields, **changes})  # type: ignore[arg-type]
