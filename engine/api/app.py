"""The aiohttp application: routes, and what every request passes through."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable

import structlog
from aiohttp import web

from engine.api.auth import has_key
from engine.api.chat import chat_completions
from engine.api.discovery import findings_for, health, load, metrics, model, models, props, root
from engine.api.errors import RETRY_AFTER, ApiError, internal
from engine.api.messages import count_tokens, messages
from engine.api.openapi import openapi
from engine.api.readiness import progress_of
from engine.api.responses import routes as responses
from engine.api.service import SERVICE, Service
from engine.api.status_page import page
from engine.log import get_logger
from engine.version import version

log = get_logger(__name__)

RETRY_KEYS = 10  # seconds
ADMIN = frozenset({"/metrics", "/v1/load"})  # these tell of other people's requests

# Spec/serving.md §3. No credentials: a page sends its key in a header.
CORS = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Expose-Headers": "x-request-id, request-id",
    "Access-Control-Allow-Headers": (
        "Authorization, Content-Type, X-API-Key, anthropic-version, anthropic-beta, anthropic-user-profile-id"
    ),
    "Access-Control-Allow-Methods": "GET, POST, DELETE, OPTIONS",
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def create_app(service: Service) -> web.Application:
    """The application around `service`, whose `run` the caller keeps going."""
    # Bodies are bounded by read_body, which also bounds what they decompress to.
    app = web.Application(middlewares=[_shape, _named, _ready, _authorised], client_max_size=0)
    app[SERVICE] = service
    app.on_response_prepare.append(_identify)
    app.router.add_head("/", root)
    app.router.add_get("/", page, allow_head=False)
    app.router.add_get("/health", health)
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/v1/models", models)
    app.router.add_get("/v1/models/{id:.+}", model)
    app.router.add_get("/openapi.json", openapi)
    app.router.add_get("/props", props)
    app.router.add_get("/v1/load", load)
    app.router.add_post("/v1/chat/completions", chat_completions)
    app.router.add_post("/v1/messages", messages)
    app.router.add_post("/v1/messages/count_tokens", count_tokens)
    app.router.add_routes(responses.ROUTES)
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
    if request.app[SERVICE].config.cors:
        response.headers.update(CORS)


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
    if _is_anthropic(request.path):
        response = web.json_response(error.anthropic(request["identity"][1]), status=error.anthropic_status)
    else:
        response = web.json_response(error.openai(), status=error.status)
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
async def _named(request: web.Request, handler: Handler) -> web.StreamResponse:
    """403 for a request that a page elsewhere may have made through DNS rebinding; see `engine.api.hosts`."""
    hosts = request.app[SERVICE].hosts
    for name in request.headers.getall("Host", ()):
        if not hosts.allows(name):
            log.warning("host_refused", host=name[:200], peer=request.remote)
            raise ApiError(
                403,
                f"this server is not called {name[:100]!r}; use its address or name, or allow the name with "
                "--allowed-hosts (NINFER_ALLOWED_HOSTS)",
                code="host_not_allowed",
            )
    return await handler(request)


@web.middleware
async def _ready(request: web.Request, handler: Handler) -> web.StreamResponse:
    """503 with the boot phase, on every route and method, until requests are served (spec/serving.md §1)."""
    service = request.app[SERVICE]
    status = service.readiness.status()
    if status.phase == "ready" or (service.ready.is_set() and request.path == "/metrics"):
        return await handler(request)
    if (request.method, request.path) == ("GET", "/"):
        return await page(request)
    phase = {"phase": status.phase, "detail": status.detail, "progress": progress_of(status)}
    if request.path == "/health":
        body = {"status": "unavailable", "version": version()} | phase | findings_for(request)
    else:
        shown = f"the model is not ready: {status.phase}" + (f" ({status.detail})" if status.detail else "")
        error = ApiError(503, shown, kind="service_unavailable", code="model_loading")
        rendered = error.anthropic(request["identity"][1]) if _is_anthropic(request.path) else error.openai()
        body = rendered | phase
    return web.json_response(body, status=503, headers={"Retry-After": str(RETRY_AFTER)})


@web.middleware
async def _authorised(request: web.Request, handler: Handler) -> web.StreamResponse:
    service = request.app[SERVICE]
    if request.method == "OPTIONS" and service.config.cors:
        return web.Response(status=204)
    if not _needs_key(request):
        return await handler(request)
    decision = service.keys.decide(request.headers, request.remote)
    if decision.verdict == "too_often":
        raise ApiError(
            429, "too many wrong API keys came from this address; try again later",
            kind="rate_limit_error", code="too_many_wrong_keys", retry_after=RETRY_KEYS,
        )  # fmt: skip
    if decision.verdict == "refused":
        log.warning("key_refused", peer=request.remote, path=request.path)
        raise ApiError(
            401, "a valid API key is needed: Authorization: Bearer KEY, or x-api-key: KEY", code="invalid_api_key"
        )
    if decision.role != "admin" and request.path in ADMIN:
        log.warning("role_refused", key=decision.name, path=request.path)
        raise ApiError(
            403, f"the key {decision.name!r} has the role {decision.role!r}; {request.path} needs an admin's",
            code="admin_key_needed",
        )  # fmt: skip
    request["cache_salt"], request["key"] = decision.cache_salt, decision.name
    if decision.name is None:
        return await handler(request)
    with structlog.contextvars.bound_contextvars(key=decision.name):
        return await handler(request)


def _needs_key(request: web.Request) -> bool:
    if request.method in ("GET", "HEAD") and request.path == "/health":
        return False
    if (request.method, request.path) == ("GET", "/") and not has_key(request.headers):
        return False  # it then shows the phase alone
    return request.method != "OPTIONS" and (request.method, request.path) != ("HEAD", "/")
