"""What goes wrong around a request: dead engines, vanished clients, full queues, slow peers (cases Q1-Q8)."""

import contextlib
import http.client
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.api.box import Box, Reply, chat_body, running


def background(work: Callable[[], Reply]) -> tuple[threading.Thread, list[Reply]]:
    replies: list[Reply] = []
    thread = threading.Thread(target=lambda: replies.append(work()))
    thread.start()
    return thread, replies


def open_request(box: Box, script: dict[str, Any], **fields: Any) -> socket.socket:
    """Send a chat request on a bare socket and do not read the answer."""
    body = json.dumps(chat_body(script, **fields)).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    connection = socket.create_connection(("127.0.0.1", box.port), timeout=20)
    connection.sendall(head.encode() + body)
    return connection


LONG: dict[str, Any] = {"text": "word " * 400, "delay": 0.02}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("stage", ["queued", "prefilling", "decoding"])
def test_a_client_that_leaves_frees_its_lane(box: Box, stage: str, stream: bool) -> None:
    script: dict[str, Any] = {"queued": {"queue": 30.0}, "prefilling": {"prefill": 30.0}, "decoding": LONG}[stage]
    cancels, begun = len(box.seen("cancel")), len(box.seen("submit" if stage == "queued" else "admitted"))
    with contextlib.closing(open_request(box, script, stream=stream)) as connection:
        begin = box.await_seen("submit" if stage == "queued" else "admitted", begun + 1)
        if stage == "decoding":
            if stream:
                while b"word" not in connection.recv(4096):
                    pass
            else:
                time.sleep(0.1)
    left = time.monotonic()
    cancel = box.await_seen("cancel", cancels + 1)
    assert time.monotonic() - left < 1
    assert cancel["id"] == begin["id"]
    assert box.chat({"text": "next"}).status == 200
    metrics = box.request("GET", "/metrics").body.decode()
    assert 'ninfer_requests_total{outcome="cancelled"}' in metrics
    assert "llamacpp:requests_processing 0.0" in metrics


def test_silence_is_filled_with_comments(box: Box) -> None:
    reply = box.chat({"text": "a b", "queue": 0.5, "prefill": 0.5, "delay": 0.3}, stream=True)
    frames = reply.body.decode().split("\n\n")
    comments = [number for number, frame in enumerate(frames) if frame == ": keep-alive"]
    first_text = next(number for number, frame in enumerate(frames) if '"content":"a' in frame)
    assert comments[0] == 1  # while queued, just after the role
    assert len([number for number in comments if number < first_text]) >= 3
    assert comments[-1] > first_text
    assert reply.events[-1] == "[DONE]"


def test_a_killed_engine_ends_streams_and_comes_back(tmp_path: Path) -> None:
    with running(tmp_path, {"lanes": 4}) as box:
        waiting, plain = background(lambda: box.chat(LONG | {"die_after": 5}))
        waiting.join()
        assert (plain[0].status, plain[0].error["code"]) == (503, "service_unavailable")
        box.wait(503, "load")
        assert box.request("GET", "/metrics").body.count(b"ninfer_engine_ready 0.0") == 1
        refused = box.chat()
        assert (refused.status, refused.error["code"], refused.headers["Retry-After"]) == (503, "model_loading", "2")
        box.start_engine(lanes=4)
        box.wait(200)
        admitted = len(box.seen("admitted"))
        streaming, streamed = background(lambda: box.chat(LONG, stream=True))
        queued, refusal = background(lambda: box.chat({"queue": 30.0}, stream=True))
        box.await_seen("admitted", admitted + 1)
        box.await_seen("submit", len(box.seen("submit")))
        time.sleep(0.3)
        killed = time.monotonic()
        box.kill_engine()
        streaming.join()
        queued.join()
        assert time.monotonic() - killed < 2
        for reply in (streamed[0], refusal[0]):
            assert reply.status == 200
            assert reply.events[-1]["error"]["code"] == "service_unavailable"
            assert reply.events[-1]["error"]["type"] == "server_error"
        box.wait(503, "load")
        box.start_engine(lanes=4)
        box.wait(200)
        assert box.chat({"text": "again"}).json["choices"][0]["message"]["content"] == "again"


def test_a_hanging_engine_and_slow_headers_are_noticed(tmp_path: Path) -> None:
    with running(tmp_path, heartbeat=0.6, stall=1.0, idle_connection=1.0) as box:
        started = time.monotonic()
        reply = box.chat({"prefill": 60.0}, stream=True)
        assert "has not moved" in reply.events[-1]["error"]["message"]
        box.wait(200)
        reply = box.chat(LONG | {"hang_after": 2}, stream=True)
        assert reply.events[-1]["error"]["code"] == "service_unavailable"
        assert "said nothing" in reply.events[-1]["error"]["message"]
        assert time.monotonic() - started < 8
        assert box.wait(503).json["phase"] == "load"
        assert box.engine is not None
        os.kill(box.engine.pid, signal.SIGCONT)
        box.wait(200)
        with socket.create_connection(("127.0.0.1", box.port), timeout=20) as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\nX-Slow: ")
            begun = time.monotonic()
            assert connection.recv(100) == b""
            assert time.monotonic() - begun < 5


def test_capacity_and_deadline(tmp_path: Path) -> None:
    with running(tmp_path, {"lanes": 1, "pending": 1}, pending_timeout_ms=60_000) as box:
        held = [open_request(box, {"queue": 30.0}, stream=True) for _ in range(2)]
        box.await_seen("submit", 2)
        full = box.chat()
        assert (full.status, full.error["code"], full.error["type"]) == (429, "server_overloaded", "rate_limit_error")
        assert full.headers["Retry-After"] == "2"
        assert box.request("GET", "/health").status == 200
        assert box.chat(temperature=9).status == 400  # validation comes before capacity
        held.pop().close()
        box.await_seen("cancel", 1)
        assert box.chat({"text": "free"}).status == 200
        held.pop().close()


def test_idle_connections_cost_nothing(tmp_path: Path) -> None:
    with running(tmp_path, {"lanes": 8, "pending": 8}, max_connections=220) as box, contextlib.ExitStack() as stack:
        for number in range(200):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", box.port), timeout=20))
            if number % 2:
                connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")  # headers that never end
        work = [background(lambda: box.chat({"text": "served", "prefill": 0.2})) for _ in range(8)]
        for thread, replies in work:
            thread.join()
            assert replies[0].json["choices"][0]["message"]["content"] == "served"
        for _ in range(40):
            stack.enter_context(socket.create_connection(("127.0.0.1", box.port), timeout=20))
        time.sleep(0.2)  # those that came together are counted together
        turned_away = box.request("GET", "/health")
        assert (turned_away.status, turned_away.headers["Connection"]) == (503, "close")
        assert turned_away.error["message"] == "too many open connections"


def test_a_slow_body_is_cut_off(box: Box) -> None:
    with socket.create_connection(("127.0.0.1", box.port), timeout=20) as connection:
        connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        reply = Reply(answer)
        assert (reply.status, reply.error["code"]) == (408, "request_timeout")


def test_stop_lets_requests_end_and_cuts_what_takes_too_long(tmp_path: Path) -> None:
    with running(tmp_path, drain=1.0) as box:
        short, short_reply = background(lambda: box.chat({"text": "a b c", "delay": 0.1}))
        long, long_reply = background(lambda: box.chat(LONG, stream=True))
        idle = socket.create_connection(("127.0.0.1", box.port), timeout=20)
        box.await_seen("admitted", 2)
        assert box.api is not None
        begun = time.monotonic()
        box.api.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        with pytest.raises(ConnectionRefusedError):
            box.request("GET", "/health")
        idle.sendall(
            b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        )  # a connection from before hears that we are going
        answer = http.client.HTTPResponse(idle)
        answer.begin()
        assert Reply(answer).json["phase"] == "draining"
        short.join()
        long.join()
        assert box.api.wait(timeout=20) == 0
        assert time.monotonic() - begun < 4
        assert short_reply[0].json["choices"][0]["message"]["content"] == "a b c"
        assert "shutting down" in long_reply[0].events[-1]["error"]["message"]
        idle.close()


def test_the_port_is_bound_first(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        box = Box(tmp_path)
        box.config = type(box.config)(artifact="a", socket="b", port=other.getsockname()[1])
        try:
            box.start_api()
            assert box.api is not None
            assert box.api.wait(timeout=20) != 0
            assert "cannot listen" in box.api_log.read_text()
        finally:
            box.stop()
