"""What a start says of itself, once: the lines of the seed's launchers (spec/cli.md §5.1)."""

from appliance.profiles import launch_profile
from appliance.settings import Settings, etc_file
from engine.plan import Speculation


def facts(settings: Settings) -> dict[str, str]:
    """Name and text of each line, as asked for: a plan may still step sizes down and says so."""
    options = settings.options
    profile = launch_profile(settings.resolved, settings.variables, etc_file("profiles.toml"))
    extras = profile.extras
    pool = options.max_context if options.kv_capacity is None else options.kv_capacity
    host = (
        f"; {extras.host_context_mib} MiB of host memory wanted for it, none taken" if extras.host_context_mib else ""
    )
    return {
        "model": f"{settings.public_name}, profile {profile.name}" if profile.name else settings.public_name,
        "lanes": str(options.max_concurrency),
        "context": f"{options.max_context} tokens",
        "pool": "what fits" if pool == "auto" else f"{pool} tokens",
        "KV": f"{options.kv_dtype}, recurrent state {'FP16' if options.gdn_state_fp16 else 'FP32'}",
        "speculation": _speculation(extras.speculation) + (", MTP experts Q4" if extras.mtp_experts_q4 else ""),
        "vision": extras.vision,
        "prefill": f"chunks of {options.prefill_chunk} tokens{', cuBLAS' if extras.prefill_cublas else ''}",
        "cache": f"no prefix reuse in this version{host}",
        "guard": _guard(options.min_p, options.presence_penalty),
        "template": "the artifact's" if options.chat_template is None else str(options.chat_template),
        "API": f"{settings.url}/v1",
    }


def _speculation(speculation: Speculation) -> str:
    if speculation.backend == "none":
        return "off"
    return f"{speculation.backend}, {speculation.drafts} drafts{', draft head' if speculation.draft_head else ''}"


def _guard(min_p: float | None, presence_penalty: float | None) -> str:
    parts = [
        f"{name} {value:g}"
        for name, value in (("min-p", min_p), ("presence penalty", presence_penalty))
        if value is not None
    ]
    return ", ".join(parts) or "the model's preset"
