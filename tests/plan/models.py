"""Geometries of spec/model.md §1 and weights of spec/memory-and-fit.md §1.1, in bytes."""

from engine.plan import GIB, MIB, Geometry, Settings, Speculation, Weights

DENSE_27B = Geometry(
    layers=64,
    attention_layers=16,
    hidden_size=5120,
    vocabulary_rows=248_320,
    token_count=248_077,
    query_heads=24,
    key_value_heads=4,
    head_dim=256,
    feed_forward_size=17_408,
    experts_per_token=0,
    linear_key_heads=16,
    linear_key_dim=128,
    linear_value_heads=48,
    linear_value_dim=128,
    conv_taps=4,
    max_positions=262_144,
)
MOE_35B = Geometry(
    layers=40,
    attention_layers=10,
    hidden_size=2048,
    vocabulary_rows=248_320,
    token_count=248_077,
    query_heads=16,
    key_value_heads=2,
    head_dim=256,
    feed_forward_size=9 * 512,
    experts_per_token=8,
    linear_key_heads=16,
    linear_key_dim=128,
    linear_value_heads=32,
    linear_value_dim=128,
    conv_taps=4,
    max_positions=262_144,
)

# The upstream artifacts, whose figures the calculator and the tables publish.
WEIGHTS_27B = Weights(text=17_093_490_688, mtp=451_267_584, draft_head=357_040_128, dflash2=2_226_792_960)
WEIGHTS_35B = Weights(
    text=21_038_469_632,
    mtp=897_934_336,
    draft_head=143_130_624,
    dflash=410_052_096,
    mtp_experts_q4_saving=360_710_144,
)

MTP3 = Speculation("mtp", 3)
MTP3_HEAD = Speculation("mtp", 3, draft_head=True)
DFLASH2 = Speculation("dflash2", 7)
DFLASH2_HEAD = Speculation("dflash2", 7, draft_head=True)
DFLASH = Speculation("dflash", 3)

TUNED_MTP = Settings(kv_dtype="rk8v4", speculation=MTP3_HEAD, vision="overlay")

EMBEDDING_Q4 = round(644.1 * MIB)
HEAD_Q6 = round(341.0 * MIB)


def gib(size: int) -> float:
    """Bytes as GiB."""
    return size / GIB
