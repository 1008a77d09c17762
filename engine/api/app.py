"""The aiohttp application: routes, and what every request passes through."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable

import structlog
from aiohttp import web

from engine.api.chat import chat_completions
from engine.api.discovery import health, metrics, model, models
from engine.api.errors import RETRY_AFTER, ApiError, internal
from engine.api.readiness import progress_of
from engine.api.service import SERVICE, Service
from engine.log import get_logger
from engine.version import version

log = get_logger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def create_app(service: Service) -> web.Application:
    """The application around `service`, whose `run` the caller keeps going."""
    # Bodies are bounded by read_body, which also bounds what they decompress to.
    app = web.Application(middlewares=[_shape, _ready, _authorised], client_max_size=0)
    app[SERVICE] = service
    app.on_response_prepare.append(_identify)
    app.router.add_get("/health", health)
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/v1/models", models)
    app.router.add_get("/v1/models/{id:.+}", model)
    app.router.add_post("/v1/chat/completions", chat_completions)
    return app


def _is_anthropic(path: str) -> bool:
    return path == "/v1/messages" or path.startswith("/v1/messages/")


def request_id(path: str) -> tuple[str, str] | None:
    """Header and a fresh id for a request to `path`, in the form its protocol uses (spec/serving.md §3)."""
    if _is_anthropic(path):
        return "request-id", f"req_{secrets.token_hex(8)}"
    if path.startswith("/v1/"):
        return "x-request-id", f"req_{secrets.token_hex(16)}"
    return None


async def _identify(request: web.Request, response: web.StreamResponse) -> None:
    response.headers["X-NInfer-Version"] = version()
    identity = request.get("identity")
    if identity is not None:
        response.headers[identity[0]] = identity[1]


@web.middleware
async def _shape(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Give the request its id and turn every error into the shape of its protocol."""
    identity = request["identity"] = request_id(request.path)
    with structlog.contextvars.bound_contextvars(**({"request_id": identity[1]} if identity else {})):
        try:
            return await handler(request)
        except ApiError as error:
            return _error_response(request, error)
        except web.HTTPException as error:
            if error.status < 400:
                raise
            response = _error_response(request, _from_http(error, request))
            if "Allow" in error.headers:
                response.headers["Allow"] = error.headers["Allow"]
            return response
        except (asyncio.CancelledError, ConnectionResetError):
            log.info("client_disconnected", method=request.method, path=request.path, status=499)
            raise
        except Exception:
            log.exception("request_failed", method=request.method, path=request.path)
            return _error_response(request, internal())


def _error_response(request: web.Request, error: ApiError) -> web.Response:
    body = error.anthropic(request["identity"][1]) if _is_anthropic(request.path) else error.openai()
    response = web.json_response(body, status=error.status)
    if error.retry_after is not None:
        response.headers["Retry-After"] = str(error.retry_after)
    return response


def _from_http(error: web.HTTPException, request: web.Request) -> ApiError:
    if error.status == 404:
        return ApiError(404, f"there is nothing at {request.path[:200]}", code="not_found")
    if error.status == 405:
        return ApiError(405, f"{request.path[:200]} does not take {request.method}", code="method_not_allowed")
    return ApiError(error.status, error.reason)


@web.middleware
async def _ready(request: web.Request, handler: Handler) -> web.StreamResponse:
    """503 with the boot phase, on every route and method, until requests are served (spec/serving.md §1)."""
    service = request.app[SERVICE]
    status = service.readiness.status()
    if status.phase == "ready" or (service.ready.is_set() and request.path == "/metrics"):
        return await handler(request)
    phase = {"phase": status.phase, "detail": status.detail, "progress": progress_of(status)}
    if request.path == "/health":
        body = {"status": "unavailable", "version": version()} | phase
    else:
        shown = f"the model is not ready: {status.phase}" + (f" ({status.detail})" if status.detail else "")
        error = ApiError(503, shown, kind="service_unavailable", code="model_loading")
        rendered = error.anthropic(request["identity"][1]) if _is_anthropic(request.path) else error.openai()
        body = rendered | phase
    return web.json_response(body, status=503, headers={"Retry-After": str(RETRY_AFTER)})


@web.middleware
async def _authorised(request: web.Request, handler: Handler) -> web.StreamResponse:
    exempt = request.method == "OPTIONS" or (request.path == "/health" and request.method in ("GET", "HEAD"))
    if not exempt and not request.app[SERVICE].keys.accept(request.headers):
        log.warning("key_refused", peer=request.remote, path=request.path)
        raise ApiError(
            401, "a valid API key is needed: Authorization: Bearer KEY, or x-api-key: KEY", code="invalid_api_key"
        )
    return await handler(request)
