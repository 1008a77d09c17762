"""What the request log says about a start, a request and an interval (spec/serving.md §13).

Keys that this version has no data for are kept, with 0 or null.
"""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from engine.api.config import ApiConfig
from engine.api.generation import Account, Prepared
from engine.api.model import ServedModel
from engine.api.request_log import RequestLog
from engine.api.sampling import preset
from engine.api.tools import Toolset
from engine.options import Options, rows_of
from engine.protocol import Finish, Limits
from engine.version import version

if TYPE_CHECKING:
    from engine.api.exchange import Exchange

FINISHES: dict[Finish, str] = {
    "stop_id": "stop_token",
    "stop_string": "stop_string",
    "length": "output_limit",
    "context": "context_capacity",
    "cancelled": "cancelled",
}


class Records:
    """Writes the records of one process."""

    def __init__(self, log: RequestLog) -> None:
        self.log = log

    def serving(self, config: ApiConfig, served: ServedModel, name: str, limits: Limits, *, keys: bool) -> None:
        """`server_start`: requests are served from now on."""
        if self.log.enabled:
            self.log.write("server_start", server_start(config, served, name, limits, keys=keys))

    def started(self, exchange: "Exchange") -> None:
        """`request_start`: the prompt is made."""
        if self.log.enabled:
            self.log.write(
                "request_start", {"request": request(exchange), "preparation_seconds": _preparation(exchange.account)}
            )

    def ended(self, exchange: "Exchange") -> None:
        """`request_rejected`, `request_done` or `request_error`."""
        if not self.log.enabled:
            return
        error = exchange.error
        if exchange.prepared is None:
            shown = None
            if error is not None:
                shown = {
                    "status": error.status, "type": error.kind, "code": error.code, "param": error.param,
                    "message": error.message,
                }  # fmt: skip
            elif exchange.outcome == "cancelled":
                shown = {
                    "status": 499, "type": "request_cancelled", "code": "client_disconnected", "param": None,
                    "message": "the client has gone",
                }  # fmt: skip
            self.log.write("request_rejected", {"phase": "prepare", "request": request(exchange), "error": shown})
        elif error is not None:
            self.log.write("request_error", {"request": request(exchange), "error": {"message": error.message}})
        else:
            self.log.write("request_done", _done(exchange, exchange.prepared))


def server_start(
    config: ApiConfig, served: ServedModel, name: str, limits: Limits, *, keys: bool
) -> dict[str, Any]:  # fmt: skip
    """The record's fields."""
    defaults = config.generation
    overrides = ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "seed")
    return {
        "version": version(),
        "server": {
            "host": config.host,
            "port": config.port,
            "public_model_id": name,
            "api_key_configured": keys,
            "tls": config.tls_certificate is not None,
            "cors_enabled": config.cors,
            "max_request_bytes": config.max_request_mib * 1024 * 1024,
            "media_cache_bytes": 0,
            "media_live_bytes": 0,
            "media_preprocess_threads": 0,
            "request_log_jsonl": config.request_log_jsonl,
            "default_output_tokens": defaults.default_max_tokens,
            "default_output_policy": "remaining_context" if defaults.default_max_tokens is None else "fixed",
            "default_thinking": not defaults.no_thinking and served.frontend.thinks,
            "default_thinking_budget": defaults.default_thinking_budget,
            "default_reasoning_effort": defaults.reasoning_effort,
            "default_preserve_thinking": None,
            "tolerant_tool_calls": False,
            "default_graft": None,
        },
        "artifact": {
            "path": config.artifact,
            "size_bytes": served.size,
            "architecture": served.architecture,
            "name": served.name,
            "formats": list(served.formats),
            "fingerprint": served.fingerprint,
        },
        "engine": {
            "device": config.engine.device,
            "max_context": limits.max_context,
            "kv_capacity_mode": config.engine.kv_capacity_mode,
            "kv_capacity": limits.kv_capacity,
            "max_concurrency": limits.lanes,
            "max_pending_requests": limits.max_pending,
            "pending_timeout_ms": config.pending_timeout_ms,
            "prefill_chunk": config.engine.prefill_chunk,
            "log_stats_interval_ms": config.log_stats_interval_ms,
            "kv_cache": config.engine.kv_dtype,
            "gdn_state_fp16": config.engine.gdn_state_fp16,
            "vision": False,
            "cuda_graph": False,
            "prefix_reuse": False,
            "speculative_backend": "none",
            "speculative_draft_window": 0,
            "proposal_head": None,
            "context_cost": None,
            "context_cache": None,
        },
        "sampling_defaults": {
            "thinking": msgspec.to_builtins(preset(served.name, thinking=True)),
            "non_thinking": msgspec.to_builtins(preset(served.name, thinking=False)),
            "server_overrides": {
                name: value for name in overrides if (value := getattr(defaults, name)) is not None
            },
            "omitted_seed": "random" if defaults.seed is None else "fixed",
            "greedy": defaults.greedy,
        },
        "memory": {
            component: {"planned_bytes": planned, "measured_bytes": measured}
            for component, (planned, measured) in limits.ledger.items()
        },
        "environment": {
            "device": config.engine.device,
            "gpu_name": None,
            "gpu_uuid": None,
            "total_device_memory_bytes": None,
            "compute_capability_major": None,
            "compute_capability_minor": None,
            "cuda_driver_version": None,
            "cuda_runtime_version": None,
        },
        "argv": redacted(sys.argv),
    }  # fmt: skip


def redacted(arguments: Sequence[str]) -> list[str]:
    """The arguments with the value of every secret option replaced."""
    secret = {row.flag for _, row in rows_of(Options) if row.secret}
    shown: list[str] = []
    for argument in arguments:
        flag = argument.partition("=")[0]
        if shown and shown[-1] in secret:
            shown.append("<redacted>")
        elif flag in secret and "=" in argument:
            shown.append(f"{flag}=<redacted>")
        else:
            shown.append(argument)
    return shown


def request(exchange: "Exchange") -> dict[str, Any]:
    """Who asked for what; less is known of a request that was refused."""
    shown: dict[str, Any] = {
        "request_id": exchange.number,
        "http_request_id": exchange.http_id,
        "response_id": exchange.id,
        "protocol": exchange.protocol,
        "model": exchange.model,
        "stream": exchange.stream,
        "api_key": exchange.key,  # its name
    }
    ask, prepared = exchange.ask, exchange.prepared
    if ask is None:
        return shown
    shown |= {
        "message_count": len(ask.messages),
        "media_item_count": 0,
        "requested_output_tokens": ask.output_limit,
        "requested_output_tokens_source": "server_default" if ask.output_limit is None else "client",
        "tool_count": len(ask.tools.tools),
        "tool_choice": _choice(ask.tools),
        "has_tool_history": any(one["role"] == "tool" or one.get("tool_calls") for one in ask.messages),
    }
    if prepared is None:
        return shown
    return shown | {
        "requested_output_tokens": prepared.max_tokens if ask.output_limit is None else ask.output_limit,
        "enable_thinking": prepared.thinking,
        "thinking_budget": ask.thinking_budget,
        "effective_thinking_budget": None,  # the engine's to decide, and it does not say
        "requested_reasoning_effort": ask.reasoning_effort,
        "preserve_thinking": ask.preserve_thinking,
        "preserve_thinking_semantic_change": False,
        "sampling": msgspec.to_builtins(prepared.sampling),
    }


def _preparation(account: Account) -> dict[str, Any]:
    total = 0.0 if account.prepared is None else account.prepared - account.arrived
    counts = (
        "media_items", "media_bytes", "raw_patches", "vision_tokens", "patch_bytes", "cache_hits", "cache_misses",
        "singleflight_waits", "built_patch_bytes", "reused_patch_bytes",
    )  # fmt: skip
    return {
        "total": round(total, 6),
        "acquisition": 0.0,
        "media_preprocess": 0.0,
        "media_preprocess_work": 0.0,
        "tokenize": round(total, 6),
    } | dict.fromkeys(counts, 0)


def _done(exchange: "Exchange", prepared: Prepared) -> dict[str, Any]:
    account = exchange.account
    finish = "cancelled" if exchange.outcome == "cancelled" else FINISHES.get(account.finish or "error", "none")
    if finish == "output_limit" and prepared.context_bound:
        finish = "context_capacity"
    engine = account.engine
    return {
        "request": request(exchange),
        "result": {
            "finish_reason": finish,
            "prompt_tokens": account.prompt_tokens,
            "completion_tokens": account.generated,
            "generated_token_ids": account.token_ids,
            "computed_prefill_tokens": 0 if engine is None else engine.prefill_tokens,
            "prefix_cache_hit_tokens": account.cached_tokens,
            "prefix_reuse_path": "checkpoint" if account.cached_tokens else "root",
            "thinking_tokens": account.reasoning_tokens,
            "tool_call_count": account.calls,
            "tool_call_parse": _parse(account),
        },
        "timings_seconds": _timings(account),
        "vision_overlay": None,
        "engine_timing": None if engine is None else msgspec.to_builtins(engine),
        "constraint": account.constraint,
        "first_output_timing": None,
        "speculative": {
            "backend": "none",
            "draft_window": 0,
            "rounds": 0,
            "drafted_tokens": 0,
            "accepted_tokens": 0,
            "fallback_steps": 0,
            "accepted_per_position": [],
        },
        "generation": {
            "engine_request_id": account.engine_id,
            "scheduling": None,
            "admission": None if engine is None else {"queue_seconds": engine.queue},
        },
    }


def _choice(tools: Toolset) -> str | None:
    if not tools.tools:
        return None
    choice = tools.choice
    if choice.maximum == 0:
        return "none"
    return ("named" if choice.names else "required") if choice.forced else "auto"


def _parse(account: Account) -> dict[str, Any] | None:
    parsed = account.parsed
    if parsed is None:
        return None
    return {
        "marker_seen": bool(account.calls) or parsed.fallback != "none",
        "structured_call_count": account.calls,
        "empty_arguments_omitted": 0,
        "schema_mismatch_arguments": 0,
        "duplicate_parameters_repaired": 0,
        "fallback_reason": parsed.fallback,
        "recovered_from_reasoning": bool(account.calls) and account.reasoning_tokens == account.generated,
        "tolerant_recovered": 0,
    }


def _timings(account: Account) -> dict[str, float | None]:
    def since_arrival(moment: float | None) -> float | None:
        return None if moment is None else round(moment - account.arrived, 6)

    llama = account.timings()
    return {
        "prepare": since_arrival(account.prepared),
        "ttft": since_arrival(account.first_token),
        "vision": 0.0,
        "prefill": round(llama["prompt_ms"] / 1000, 6),
        "decode": round(llama["predicted_ms"] / 1000, 6),
        "total": since_arrival(account.ended),
    }
