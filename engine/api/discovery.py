"""`/health`, `/v1/models` and `/metrics` (spec/serving.md §5)."""

from typing import Any

from aiohttp import web

from engine.api.errors import ApiError
from engine.api.metrics import CONTENT_TYPE
from engine.api.service import SERVICE, Service
from engine.version import version


async def health(_: web.Request) -> web.Response:
    """200 while requests are served; the readiness check answers otherwise."""
    return web.json_response({"status": "ok", "version": version()})


async def models(request: web.Request) -> web.Response:
    """The list of one model."""
    return web.json_response({"object": "list", "data": [_model(request.app[SERVICE])]})


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
    return {
        "id": service.public_id(served),
        "object": "model",
        "created": served.created,
        "owned_by": "ninfer",
        "max_model_len": context,
        "context_window": context,
        "context_length": context,
        "architecture": {"input_modalities": ["text"], "output_modalities": ["text"]},
    }


async def metrics(request: web.Request) -> web.Response:
    """Prometheus text."""
    body = request.app[SERVICE].metrics.render()
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE, "Cache-Control": "no-store"})
