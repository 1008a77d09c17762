"""The status page and the doctor's findings in `/health`: what is shown, to whom, and how it looks."""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer, make_mocked_request

from engine.api.access import is_local
from engine.api.app import create_app
from engine.api.config import ApiConfig
from engine.api.service import Service
from engine.api.status_page import duration, size
from engine.state_file import Finding, State, write_state
from tests.api.box import Box, running
from tests.api.browser import CHROMIUM, browser

# The program keeps a request's id under a plain name, which aiohttp advises against.
pytestmark = pytest.mark.filterwarnings("ignore::aiohttp.web.NotAppKeyWarning")

GIB = 1 << 30
PLAN: dict[str, Any] = {
    "model": "qwen38-27b", "device": "cuda:0", "max_context": 131_072, "lanes": 2, "kv_capacity": 163_840,
    "kv_dtype": "int8", "prefill_chunk": 1024, "gdn_state_fp16": False, "speculation": "none",
    "free_bytes": round(23.2 * GIB), "planned_bytes": round(22.1 * GIB), "headroom_bytes": round(0.5 * GIB),
    "left_bytes": round(0.6 * GIB),
    "ledger": {"weights": round(16.7 * GIB), "context": round(3.6 * GIB), "state": round(0.4 * GIB),
               "workspace": round(0.9 * GIB), "CUDA": round(0.5 * GIB)},
    "reduced": [{"name": "max_context", "wanted": 262_144, "got": 131_072}],
    "rejected": [{"reason": "262,144 tokens, 2 lanes: 3.4 GiB short"}],
    "notes": ["CUDA_VISIBLE_DEVICES=0 shows 1 of 2 devices"],
}  # fmt: skip
FINDINGS = (
    Finding(check="disk", level="ok", sentence="120.0 GiB free in /workspace/models"),
    Finding(check="clock", level="ok", sentence="2026-12-01 10:00 UTC, synchronised"),
    Finding(
        check="power", level="warning", sentence="card 0 (RTX 3090) is limited to 200 W of 350 W: it is slower",
        command="sudo nvidia-smi -i 0 -pl 350",
    ),
    Finding(
        check="keys", level="bad", sentence="/box/settings.toml can be read by others and holds a key",
        command="chmod 600 /box/settings.toml", fixable=True,
    ),
)  # fmt: skip
SECRET = "the words of a private prompt"


class Page(HTMLParser):
    """What a browser would fetch, run or show of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs


@contextlib.asynccontextmanager
async def booting(
    folder: Path, state: State, keys: str | None = None
) -> AsyncIterator[TestClient[web.Request, web.Application]]:
    """An api that follows a state file and has no engine."""
    file = folder / "state.json"
    write_state(file, state)
    if keys is not None:
        (folder / "keys").write_text(keys)
    config = ApiConfig(
        artifact=str(folder / "a"), socket=str(folder / "s"), state_file=str(file),
        api_key_file=None if keys is None else str(folder / "keys"),
    )  # fmt: skip
    service = Service(config)
    following = asyncio.create_task(service.readiness.run())
    async with TestClient(TestServer(create_app(service))) as client:
        while service.readiness.state is None:  # noqa: ASYNC110  (it polls a file itself)
            await asyncio.sleep(0.01)
        yield client
        following.cancel()
    service.pool.shutdown()


BOOTING = State(
    phase="load", detail="weights", done=12, total=64, unit="layers", plan=PLAN, findings=FINDINGS,
    since=time.time() - 7200 - 75, restarts=2,
)  # fmt: skip


async def test_the_page_while_the_box_starts(tmp_path: Path) -> None:
    async with booting(tmp_path, BOOTING) as client:
        reply = await client.get("/")
        text = await reply.text()
        assert (reply.status, reply.content_type, reply.headers["Retry-After"]) == (503, "text/html", "2")
        for shown in (
            "load", "weights", "12 of 64 layers", "131\u202f072", "16.7 GiB", "2 engine restarts", "for 2 h ",
            "max_context 262144", "3.4 GiB short", "shows 1 of 2 devices", "chmod 600 /box/settings.toml",
            "doctor --fix", "2 checks are well",
        ):  # fmt: skip
            assert shown in text, shown
        head = await client.head("/")
        assert (head.status, head.content_type) == (503, "application/json")
        assert (await client.post("/")).status == 503


async def test_the_page_needs_nothing_from_elsewhere(tmp_path: Path) -> None:
    async with booting(tmp_path, BOOTING) as client:
        reply = await client.get("/")
        page = Page(await reply.text())
        assert not {"script", "img", "link", "iframe", "form", "object", "base"} & set(page.tags)
        names = {name for name, _ in page.attributes}
        assert not {"src", "href", "style", "action", "srcset"} & names
        assert not [name for name in names if name.startswith("on")]
        policy = reply.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; style-src 'sha256-")
        assert "unsafe" not in policy
        assert "http-equiv" in names, "asks again by itself"
        assert reply.headers["Cache-Control"] == "no-store"


async def test_nothing_in_a_state_becomes_markup(tmp_path: Path) -> None:
    attack = '<script>alert("x")</script>'
    state = State(
        phase="failed", detail=attack, log=(attack,), plan={**PLAN, "device": attack, "notes": [attack]},
        findings=(Finding(check="disk", level="bad", sentence=attack, command=attack),), exit_code=3,
    )  # fmt: skip
    async with booting(tmp_path, state) as client:
        text = await (await client.get("/")).text()
        assert "script" not in Page(text).tags
        assert text.count("&lt;script&gt;") == 6


@pytest.mark.parametrize(
    "plan", [{}, {"ledger": None, "notes": None, "reduced": ["x"], "rejected": None}, {"lanes": 1}]
)
async def test_any_plan_can_be_shown(tmp_path: Path, plan: dict[str, Any]) -> None:
    async with booting(tmp_path, State(phase="plan", plan=plan)) as client:
        assert (await client.get("/")).status == 503


async def test_without_a_key_the_page_says_the_phase_alone(tmp_path: Path) -> None:
    async with booting(tmp_path, BOOTING, keys="right\n") as client:
        for headers in ({}, {"x-api-key": "wrong"}):
            text = await (await client.get("/", headers=headers)).text()
            assert "load" in text
            assert not [shown for shown in ("weights", "qwen", "GiB", "chmod", "layers", "restart") if shown in text]
        text = await (await client.get("/", headers={"x-api-key": "right"})).text()
        assert "chmod 600" in text


async def test_findings_in_health(tmp_path: Path) -> None:
    async with booting(tmp_path, BOOTING, keys="right\n") as client:
        told = await (await client.get("/health")).json()
        assert [(one["check"], one["level"], one["fixable"]) for one in told["findings"]] == [
            ("power", "warning", False), ("keys", "bad", True),
        ]  # fmt: skip
        assert told["findings"][1]["command"] == "chmod 600 /box/settings.toml"
        proxied = {"X-Forwarded-For": "203.0.113.9"}
        for headers in (proxied, {"Origin": "https://page.example"}, {"Host": "page.example"}, {"x-api-key": "wrong"}):
            assert "findings" not in await (await client.get("/health", headers=headers)).json(), headers
        assert "findings" in await (await client.get("/health", headers=proxied | {"x-api-key": "right"})).json()


@pytest.mark.parametrize(
    ("remote", "host", "local"),
    [
        ("127.0.0.1", "localhost:8080", True),
        ("127.0.0.1", "127.0.0.1", True),
        ("::1", "[::1]:8080", True),
        ("::ffff:127.0.0.1", "localhost", True),
        ("127.0.0.1", "rebound.example", False),
        ("192.168.1.9", "localhost", False),
        ("fe80::1%eth0", "[::1]", False),
        (None, "localhost", False),
    ],
)
def test_who_is_on_this_machine(remote: str | None, host: str, local: bool) -> None:
    request = make_mocked_request("GET", "/", headers={"Host": host})
    assert is_local(request.clone(remote=remote or "")) == local


def test_sizes_and_times() -> None:
    assert [size(value) for value in (12, 2048, 3 << 20, 5 << 30)] == ["12 B", "2.0 KiB", "3.0 MiB", "5.0 GiB"]
    assert [duration(value) for value in (-3, 59, 75, 7260, 90_000)] == [
        "0 s",
        "59 s",
        "1 min 15 s",
        "2 h 1 min",
        "1 d 1 h",
    ]


READY = State(phase="ready", plan=PLAN, findings=FINDINGS, since=time.time())


@pytest.fixture
def serving(tmp_path: Path) -> Any:
    write_state(tmp_path / "state.json", READY)
    with running(tmp_path, state_file=str(tmp_path / "state.json")) as box:
        assert box.chat({"text": "one two three"}, messages=[{"role": "user", "content": SECRET}]).status == 200
        assert box.chat({"text": "x", "error": "boom"}).status == 500
        yield box


def test_the_page_of_a_box_that_serves(serving: Box) -> None:
    reply = serving.request("GET", "/")
    text = reply.body.decode()
    assert reply.status == 200
    assert "Retry-After" not in reply.headers
    for shown in (
        "nano",
        "ready",
        "free",
        "openai",
        "completed",
        "failed",
        "context in use",
        "sudo nvidia-smi -i 0 -pl 350",
    ):
        assert shown in text, shown
    assert SECRET not in text
    head = serving.request("HEAD", "/")
    assert (head.status, head.body) == (200, b"")
    health = serving.request("GET", "/health")
    assert (health.status, len(health.json["findings"])) == (200, 2)


@pytest.mark.nightly
@pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium: tools/nightly_packages.sh")
@pytest.mark.parametrize(("width", "scheme"), [(1100, "light"), (1100, "dark"), (390, "light")])
async def test_the_page_in_a_browser(serving: Box, tmp_path: Path, width: int, scheme: str) -> None:
    """It is drawn with its style, fits the window, asks nobody else, and breaks no rule of its own policy.

    The pictures stay in the folder that SCREENSHOTS names.
    """
    url = f"http://127.0.0.1:{serving.port}/"
    file = Path(os.environ.get("SCREENSHOTS", tmp_path)) / f"status-{width}-{scheme}.png"
    async with browser(tmp_path / "profile") as tab:
        await tab.show(url, width, 900, scheme)
        await tab.picture(file)
        background = await tab.ask("getComputedStyle(document.body).backgroundColor")
        assert background == {"light": "rgb(245, 246, 244)", "dark": "rgb(18, 22, 20)"}[scheme]
        assert await tab.ask("document.documentElement.scrollWidth") <= width, "nothing hangs over"
        assert await tab.ask("document.querySelectorAll('section').length") >= 5
        assert await tab.ask("document.querySelector('.state').textContent") == "ready"
        assert await tab.ask("document.querySelector('rect').getBoundingClientRect().width") > 20
        ours = [one for one in tab.fetched if not one.endswith("/favicon.ico")]
        assert set(ours) == {url}
        assert [one for one in tab.complaints if "favicon" not in one] == []
    assert file.stat().st_size > 20_000
