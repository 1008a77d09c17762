"""What a plan needs from the engine that runs it, and what this version's engine has.

The planner computes with every format and backend. The engine refuses what it lacks; `unsupported` says so before
gigabytes are fetched or loaded.
"""

from engine.plan.ladder import Plan
from engine.plan.settings import Settings

SUPPORTED = frozenset({"kv:bf16", "device:cpu", "device:cuda", "state:fp16"})

WORKS_INSTEAD = {
    "kv": "--kv-dtype bf16",
    "speculation": "a profile without speculation",
    "prefill": "a profile with the default prefill route",
    "vision": "a profile without vision",
    "weights": "the embedded model",
}


def required(settings: Settings, *, cuda: bool, packed_weights: bool, mtp_experts_q4: bool = False) -> tuple[str, ...]:
    """Features that `settings` need, as `kind:name`. `packed_weights` is for weights used without decoding first."""
    names = [f"kv:{settings.kv_dtype}", "device:cuda" if cuda else "device:cpu"]
    if settings.speculation.backend != "none":
        names.append(f"speculation:{settings.speculation.backend}")
    if settings.state_fp16:
        names.append("state:fp16")
    if settings.prefill_cublas:
        names.append("prefill:cublas")
    if settings.vision != "off":
        names.append(f"vision:{settings.vision}")
    if mtp_experts_q4:
        names.append("weights:mtp-experts-q4")
    if packed_weights:
        names.append("weights:packed")
    return tuple(names)


def unsupported(plan: Plan, supported: frozenset[str] = SUPPORTED) -> tuple[str, ...]:
    """Features of `plan` that the engine lacks; empty when it can be started."""
    return tuple(name for name in plan.requires if name not in supported)


def explain(missing: tuple[str, ...]) -> str:
    """One sentence for a person: what is missing and what would work."""
    kinds = dict.fromkeys(name.split(":", 1)[0] for name in missing)
    instead = ", ".join(WORKS_INSTEAD[kind] for kind in kinds if kind in WORKS_INSTEAD)
    text = f"this version's engine cannot run this plan: it lacks {', '.join(missing)}"
    return f"{text}; what works: {instead}" if instead else text
