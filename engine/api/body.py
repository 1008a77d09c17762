"""Request bodies: bounded in size and time, parsed without holding up other requests."""

import asyncio
from typing import TypeVar

from aiohttp import web
from pydantic import BaseModel, ValidationError

from engine.api.errors import ApiError, from_validation
from engine.api.service import Service

# Smaller bodies take less time to parse than to hand to a thread.
INLINE_BYTES = 32 * 1024

M = TypeVar("M", bound=BaseModel)


async def read_body(request: web.Request, service: Service) -> bytes:
    """The whole body, decompressed.

    Raises:
        ApiError: 413 when it is too large, 408 when it comes too slowly, 400 when it breaks off or is damaged.
    """
    limit = service.config.max_request_mib * 1024 * 1024
    if (request.content_length or 0) > limit:
        raise _too_large(service)
    body = bytearray()
    try:
        async with asyncio.timeout(service.config.body_total):
            while True:
                async with asyncio.timeout(service.config.body_pause):
                    chunk = await request.content.readany()
                if not chunk:
                    return bytes(body)
                if len(body) + len(chunk) > limit:
                    raise _too_large(service)
                body += chunk
    except TimeoutError as error:
        raise ApiError(408, "the request body came too slowly", code="request_timeout") from error
    except (web.RequestPayloadError, ValueError) as error:
        raise ApiError(400, "the request body cannot be read", code="invalid_body") from error


async def parse_body(model: type[M], body: bytes, service: Service) -> M:
    """`body` as `model`.

    Raises:
        ApiError: 400 naming the first wrong field.
    """

    def parse() -> M:
        try:
            return model.model_validate_json(body)
        except ValidationError as error:
            raise from_validation(error, body) from error

    return parse() if len(body) <= INLINE_BYTES else await service.offload(parse)


def _too_large(service: Service) -> ApiError:
    return ApiError(
        413,
        f"the request body is larger than {service.config.max_request_mib} MiB (--max-request-mib)",
        code="request_too_large",
    )
