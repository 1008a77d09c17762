"""Headless Chromium through its DevTools protocol: draw a page, ask about it, take its picture."""

import asyncio
import base64
import contextlib
import itertools
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
PATIENCE = 60.0


class Browser:
    """One tab. `complaints` is what it logged: errors, and violations of a page's security policy."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket, self._numbers = socket, itertools.count(1)
        self.complaints: list[str] = []
        self.fetched: list[str] = []
        self._loaded = asyncio.Event()

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the protocol and its result."""
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        while True:
            message = await self._socket.receive_json(timeout=PATIENCE)
            if message.get("id") == number:
                assert "error" not in message, message
                result: dict[str, Any] = message["result"]
                return result
            self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        method, parameters = message.get("method"), message.get("params", {})
        if method == "Log.entryAdded":
            self.complaints.append(parameters["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.fetched.append(parameters["request"]["url"])
        elif method == "Page.loadEventFired":
            self._loaded.set()

    async def show(self, url: str, width: int, height: int, scheme: str) -> None:
        """Draw `url` in a window of this size, in the `light` or `dark` scheme."""
        for domain in ("Page", "Log", "Network"):
            await self.call(f"{domain}.enable")
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )
        await self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self._loaded.clear()
        await self.call("Page.navigate", url=url)
        while not self._loaded.is_set():
            self._note(await self._socket.receive_json(timeout=PATIENCE))

    async def ask(self, expression: str) -> Any:
        """The value of an expression in the page."""
        return (await self.call("Runtime.evaluate", expression=expression, returnByValue=True))["result"].get("value")

    async def picture(self, file: Path) -> None:
        """The whole page as a PNG."""
        shot = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        file.write_bytes(  # noqa: ASYNC240  (one small file)
            base64.b64decode(shot["data"])
        )


@contextlib.asynccontextmanager
async def browser(profile: Path) -> AsyncIterator[Browser]:
    """Chromium with a profile folder of its own."""
    assert CHROMIUM is not None
    process = await asyncio.create_subprocess_exec(
        CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-port=0",
        "--remote-allow-origins=*", f"--user-data-dir={profile}", "about:blank",
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL, env=dict(os.environ),
    )  # fmt: skip
    try:
        note = profile / "DevToolsActivePort"
        async with asyncio.timeout(PATIENCE):
            while not note.exists() or len(note.read_text().splitlines()) < 2:  # noqa: ASYNC110  (Chromium writes a file)
                await asyncio.sleep(0.1)
            port = note.read_text().splitlines()[0]
            async with aiohttp.ClientSession() as session:
                async with session.get(f"http://127.0.0.1:{port}/json/list") as reply:
                    (tab,) = [one for one in await reply.json() if one["type"] == "page"]
                async with session.ws_connect(tab["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                    yield Browser(socket)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
