"""The status page at `/`: one HTML document without scripts, that asks for itself again every few seconds.

Without a key, where one is needed, it shows the phase alone. It never shows what anybody asked or was answered.
"""

import base64
import hashlib
import time
from typing import Any

import jinja2
from aiohttp import web

from engine.api.access import is_keeper
from engine.api.auth import has_key
from engine.api.errors import RETRY_AFTER
from engine.api.readiness import progress_of
from engine.api.service import SERVICE, Service
from engine.api.status_template import STYLE, TEMPLATE
from engine.plan.geometry import PAGE_TOKENS, pages_of
from engine.state_file import Finding
from engine.version import version

REFRESH_READY, REFRESH_BOOT = 5, 2  # seconds
BOOT = ("fetch", "probe", "plan", "load", "reserve", "warm-up", "prove", "ready")
BAR = 1000.0  # width of the ledger's bar, in its own units
PLAN_ROWS = (
    ("model", "model"), ("device", "device"), ("max_context", "longest context"), ("lanes", "lanes"),
    ("kv_capacity", "context pool"), ("kv_dtype", "context format"), ("prefill_chunk", "prefill chunk"),
    ("speculation", "speculation"),
)  # fmt: skip
SUMS = (("planned_bytes", "together"), ("headroom_bytes", "headroom"), ("free_bytes", "free before"),
        ("left_bytes", "left over"))  # fmt: skip
LEVELS = {"bad": 0, "warning": 1, "ok": 2}

_style_hash = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        f"default-src 'none'; style-src 'sha256-{_style_hash}'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def number(value: Any) -> str:
    """Digits in threes; other things as they are."""
    return f"{value:,}".replace(",", "\u202f") if isinstance(value, int) and not isinstance(value, bool) else str(value)


def size(value: float) -> str:
    """Bytes for a person."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if abs(value) >= scale:
            return f"{value / scale:.1f} {unit}"
    return f"{value:.0f} B"


def duration(seconds: float) -> str:
    """Two units at most."""
    whole = int(max(0.0, seconds))
    for unit, length, part, smaller in (("d", 86_400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= length:
            return f"{whole // length} {unit} {whole % length // smaller} {part}"
    return f"{whole} s"


_environment = jinja2.Environment(
    autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
)
_environment.filters |= {"number": number, "size": size, "duration": duration}
_template = _environment.from_string(TEMPLATE)


async def page(request: web.Request) -> web.Response:
    """The page, with 503 until requests are served."""
    service = request.app[SERVICE]
    ready = service.readiness.status().phase == "ready"
    keeper = is_keeper(request)
    full = not service.keys.configured or (keeper and has_key(request.headers))
    text = _template.render(style=STYLE, **view(service, full=full, keeper=keeper))
    headers = HEADERS | ({} if ready else {"Retry-After": str(RETRY_AFTER)})
    return web.Response(text=text, content_type="text/html", status=200 if ready else 503, headers=headers)


def view(service: Service, *, full: bool, keeper: bool) -> dict[str, Any]:
    """What the template shows. Findings name files of the machine, so they are for its keepers."""
    status, state = service.readiness.status(), service.readiness.state
    ready = status.phase == "ready"
    shown: dict[str, Any] = {
        "phase": status.phase,
        "detail": status.detail if full else "",
        "progress": progress_of(status) if full else None,
        "phases": BOOT,
        "passed": BOOT.index(status.phase) if status.phase in BOOT else -1,
        "ready": ready,
        "refresh": REFRESH_READY if ready else REFRESH_BOOT,
        "version": version() if full else "",
        "full": full,
        "keeper": keeper,
    }
    if not full:
        return shown
    plan = {} if state is None else state.plan
    model = service.readiness.model
    return shown | {
        "model": service.public_id(model) if model is not None else str(plan.get("model", "")),
        "uptime": service.totals.uptime,
        "restarts": 0 if state is None else state.restarts,
        "since": None if state is None or not state.since else time.time() - state.since,
        "plan": [(name, plan[key]) for key, name in PLAN_ROWS if plan.get(key) not in (None, "", "none")],
        "sums": [(name, plan[key]) for key, name in SUMS if isinstance(plan.get(key), int)],
        "remarks": [*_reductions(plan), *map(str, plan.get("notes") or ())],
        "rejected": [str(row.get("reason", "")) for row in plan.get("rejected") or () if isinstance(row, dict)],
        "ledger": _ledger(service, plan),
        "work": _work(service) if ready else None,
        "recent": list(reversed(service.totals.recent)),
        "now": time.time(),
        "findings": sorted(_findings(service) if keeper else (), key=lambda one: LEVELS[one.level]),
        "log": state.log if state is not None and keeper else (),
    }


def troubles(service: Service) -> list[dict[str, Any]]:
    """The findings that are not well, as `/health` tells them."""
    return [
        {"check": one.check, "level": one.level, "sentence": one.sentence, "command": one.command,
         "fixable": one.fixable}
        for one in _findings(service) if one.level != "ok"
    ]  # fmt: skip


def _findings(service: Service) -> tuple[Finding, ...]:
    state = service.readiness.state
    return () if state is None else state.findings


def _reductions(plan: dict[str, Any]) -> list[str]:
    rows = [row for row in plan.get("reduced") or () if isinstance(row, dict)]
    return [f"{row.get('name')} {row.get('wanted')} → {row.get('got')}" for row in rows]


def _ledger(service: Service, plan: dict[str, Any]) -> list[dict[str, Any]]:
    """Component, planned and measured bytes, and where its part of the bar is; largest first."""
    limits = service.readiness.limits
    rows: dict[str, tuple[int, int | None]] = {}
    planned = plan.get("ledger")
    if isinstance(planned, dict):
        rows = {str(name): (int(amount), None) for name, amount in planned.items()}
    if limits is not None:
        rows |= dict(limits.ledger)
    whole = sum(planned for planned, _ in rows.values())
    found: list[dict[str, Any]] = []
    begin = 0.0
    for name, (amount, measured) in sorted(rows.items(), key=lambda row: -row[1][0]):
        width = BAR * amount / whole if whole else 0.0
        found.append(
            {"name": name, "planned": amount, "measured": measured, "begin": round(begin, 1), "width": round(width, 1)}
        )
        begin += width
    return found


def _work(service: Service) -> dict[str, Any] | None:
    limits, now, totals = service.readiness.limits, service.link.statistics, service.totals
    if limits is None:
        return None
    decoding = max(0, now.running - now.prefilling)
    states = ["decoding"] * decoding + ["prefill"] * now.prefilling
    return {
        "lanes": (states + ["free"] * limits.lanes)[: max(limits.lanes, len(states))],
        "waiting": now.waiting,
        "max_pending": limits.max_pending,
        "context": limits.max_context,
        "pages": now.pages_allocated,
        "page_count": pages_of(limits.kv_capacity),
        "page_tokens": PAGE_TOKENS,
        "prompt_tokens": totals.prompt_tokens,
        "generated_tokens": totals.generated_tokens,
        "reused_tokens": totals.reused_tokens,
        "pace": None if totals.last_request is None else 1 / max(totals.last_request["inter_token_seconds"], 1e-9),
    }
