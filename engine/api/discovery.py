"""What the server says about itself: `/health`, `/v1/models`, `/props`, `/v1/load`, `/metrics` (spec/serving.md §5)."""

from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from engine.api.access import is_keeper
from engine.api.errors import ApiError
from engine.api.metrics import CONTENT_TYPE
from engine.api.sampling import AskedSampling, resolve_sampling
from engine.api.service import SERVICE, Service
from engine.api.status_page import troubles
from engine.plan.geometry import PAGE_TOKENS, pages_of
from engine.version import version


async def health(request: web.Request) -> web.Response:
    """200 while requests are served; the readiness check answers otherwise."""
    return web.json_response({"status": "ok", "version": version()} | findings_for(request))


def findings_for(request: web.Request) -> dict[str, Any]:
    """`findings` of the doctor that are not well, where there are some and the caller is a keeper of the box."""
    found = troubles(request.app[SERVICE])
    return {"findings": found} if found and is_keeper(request) else {}


async def root(_: web.Request) -> web.Response:
    """An empty answer; clients look whether somebody is there."""
    return web.Response()


async def models(request: web.Request) -> web.Response:
    """The list of one model.

    `models` is where Codex looks; with nothing in it Codex keeps to what it knows. The last three are Anthropic's.
    """
    found = _model(request.app[SERVICE])
    ends = {"has_more": False, "first_id": found["id"], "last_id": found["id"]}
    return web.json_response({"object": "list", "data": [found], "models": []} | ends)


async def model(request: web.Request) -> web.Response:
    """One model by its public id, which may contain slashes."""
    service = request.app[SERVICE]
    wanted = request.match_info["id"]
    found = _model(service)
    if wanted != found["id"]:
        raise ApiError(
            404, f"the model {wanted[:100]!r} is not here; this server has {found['id']!r}",
            code="model_not_found", param="model",
        )  # fmt: skip
    return web.json_response(found)


def _model(service: Service) -> dict[str, Any]:
    served, limits = service.serving
    context = limits.max_context  # what is enforced, after any step-down
    name = service.public_id(served)
    return {
        "id": name,
        "object": "model",
        "created": served.created,
        "owned_by": "ninfer",
        # The next three are how Anthropic describes a model.
        "type": "model",
        "display_name": name,
        "created_at": datetime.fromtimestamp(served.created, UTC).isoformat().replace("+00:00", "Z"),
        "max_model_len": context,
        "context_window": context,
        "context_length": context,
        "architecture": {"input_modalities": ["text"], "output_modalities": ["text"]},
    }


async def props(request: web.Request) -> web.Response:
    """What llama.cpp's clients ask for."""
    service = request.app[SERVICE]
    served, limits = service.serving
    defaults = service.config.generation
    thinking = served.frontend.thinks and not defaults.no_thinking
    sampling = resolve_sampling(served.name, AskedSampling(), defaults, thinking=thinking)
    bounds = [one for one in (defaults.default_max_tokens, defaults.max_output_tokens) if one is not None]
    output = min(bounds, default=-1)
    params: dict[str, Any] = {
        "n_predict": output,
        "max_tokens": output,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
    }
    if defaults.seed is not None:
        params["seed"] = sampling.seed
    return web.json_response(
        {
            "default_generation_settings": {"n_ctx": limits.max_context, "params": params},
            "total_slots": limits.lanes,
            "model_alias": service.public_id(served),
            "model_path": service.config.artifact,
            "modalities": {"vision": False, "audio": False},
            "build_info": f"ninfer {version()}",
        }
    )


async def load(request: web.Request) -> web.Response:
    """How busy the server is, by the engine's last report, which is at most a second or two old.

    What this version has no number for is 0.
    """
    service = request.app[SERVICE]
    served, limits = service.serving
    now, totals = service.link.statistics, service.totals
    body = {
        "object": "ninfer.load",
        "model": service.public_id(served),
        "uptime_seconds": round(totals.uptime, 3),
        "capacity": {
            "max_concurrency": limits.lanes,
            "max_pending_requests": limits.max_pending,
            "max_admitted_requests": limits.lanes + limits.max_pending,
            "max_context": limits.max_context,
            "kv_capacity_tokens": limits.kv_capacity,
            "kv_capacity_pages": pages_of(limits.kv_capacity),
            "kv_page_tokens": PAGE_TOKENS,
            "device_state_slots": 0,
            "host_context_bytes": 0,
        },
        "requests": {
            "admitted": service.admission.active,
            "running": now.running,
            "prefilling": now.prefilling,
            "decode_ready": max(0, now.running - now.prefilling),
            "waiting": now.waiting,
            "paused": 0,
            "replaying": 0,
            "materializing": 0,
        },
        "occupancy": {
            "device_main_kv_pages": now.pages_allocated,
            "device_main_kv_tokens": now.pages_allocated * PAGE_TOKENS,
            "device_state_slots": 0,
            "host_state_slots": 0,
            "host_kv_bytes": 0,
            "host_context_bytes": 0,
        },
        "counters": {
            "computed_prefill_tokens": totals.prompt_tokens,
            "committed_decode_tokens": totals.decode_tokens,
            "reused_prompt_tokens": totals.reused_tokens,
            "decode_rounds": totals.rounds,
            "decode_row_rounds": totals.row_rounds,
        },
        "host": {"active_seconds": 0.0, "device_wait_seconds": 0.0},
        "last_request": totals.last_request,
    }
    return web.json_response(body, headers={"Cache-Control": "no-store"})


async def metrics(request: web.Request) -> web.Response:
    """Prometheus text."""
    body = request.app[SERVICE].metrics.render()
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE, "Cache-Control": "no-store"})
