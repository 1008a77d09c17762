"""Every route before and after ready, keys, ids, limits, discovery (spec/serving.md §1-§5)."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from engine.state_file import State, write_state
from engine.version import version
from tests.api.box import ROOT, Box, chat_body, running

ROUTES = [
    ("GET", "/health"),
    ("GET", "/metrics"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/nano"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/messages"),
    ("OPTIONS", "/v1/chat/completions"),
    ("DELETE", "/nowhere"),
]


def test_phases_until_ready(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    box = Box(tmp_path, state_file=str(state), api_key_file=str(tmp_path / "keys"))
    (tmp_path / "keys").write_text("secret\n")
    try:
        box.start_api()
        box.artifact.unlink()
        assert box.wait(503, "fetch").json["detail"]
        assert box.api is not None
        used = psutil.Process(box.api.pid).cpu_times()
        assert used.user + used.system < 2.5  # processor time, which other work on the machine does not stretch
        write_state(state, State(phase="fetch", detail="nano", done=3, total=10, unit="MB"))
        while not (reply := box.wait(503, "fetch")).json["progress"]:
            time.sleep(0.05)
        assert reply.json["progress"] == {"done": 3, "total": 10, "unit": "MB"}
        for method, path in ROUTES:  # before the key is even looked at
            reply = box.request(method, path, b"" if method == "POST" else None)
            assert (reply.status, reply.headers["Retry-After"]) == (503, "2")
            assert reply.headers["X-NInfer-Version"] == version()
            assert reply.json["phase"] == "fetch"
            if path == "/health":
                assert reply.json["status"] == "unavailable"
            elif path == "/v1/messages":
                assert reply.json["error"]["type"] == "api_error"
            else:
                assert (reply.error["type"], reply.error["code"]) == ("service_unavailable", "model_loading")
        write_state(state, State(phase="load"))
        box.start_engine(waits=True)
        while not (reply := box.wait(503, "load")).json["progress"]:
            time.sleep(0.05)  # the engine's own progress is shown once it is there
        assert reply.json["progress"] == {"done": 1, "total": 4, "unit": "layers"}
        assert box.engine is not None
        box.engine.send_signal(signal.SIGUSR1)
        write_state(state, State(phase="prove"))
        box.wait(503, "prove")  # an engine that says ready is not enough
        write_state(state, State(phase="ready"))
        assert "nano.ninfer" in box.wait(503, "load").json["detail"]  # neither is a controller that says so
        box.artifact.touch()
        assert box.wait(200).json == {"status": "ok", "version": version()}
        assert box.request("GET", "/v1/models").status == 401
        write_state(state, State(phase="failed", detail="five restarts"))
        assert box.wait(503, "failed").json["detail"] == "five restarts"
    finally:
        box.stop()


def test_keys(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("first\nsecond\n")
    with running(tmp_path, api_key_file=str(tmp_path / "keys")) as box:
        assert box.request("GET", "/health").status == 200
        for method, path in ROUTES[1:]:
            if method == "OPTIONS":
                continue
            reply = box.request(method, path, b"{}" if method == "POST" else None, {"x-api-key": "third"})
            assert reply.status == 401
            if path == "/v1/messages":
                assert reply.json["error"]["type"] == "authentication_error"
                assert reply.json["request_id"] == reply.headers["request-id"]
            else:
                assert (reply.error["code"], reply.error["type"]) == ("invalid_api_key", "invalid_request_error")
        for headers in ({"x-api-key": "first"}, {"Authorization": "bearer  second "}):
            assert box.request("GET", "/v1/models", headers=headers).status == 200
        assert "third" not in box.api_log.read_text()
        assert "key_refused" in box.api_log.read_text()


def test_request_ids_and_version(box: Box) -> None:
    openai = box.request("GET", "/v1/models")
    assert re.fullmatch(r"req_[0-9a-f]{32}", openai.headers["x-request-id"])
    missing = box.request("GET", "/v1/nothing")
    assert re.fullmatch(r"req_[0-9a-f]{32}", missing.headers["x-request-id"])
    anthropic = box.request("POST", "/v1/messages/nothing", {})
    assert re.fullmatch(r"req_[0-9a-f]{16}", anthropic.headers["request-id"])
    assert anthropic.json == {
        "type": "error",
        "error": {"type": "not_found_error", "message": "there is nothing at /v1/messages/nothing"},
        "request_id": anthropic.headers["request-id"],
    }
    stream = box.chat(stream=True)
    assert re.fullmatch(r"req_[0-9a-f]{32}", stream.headers["x-request-id"])
    plain = box.request("GET", "/health")
    assert plain.headers["x-request-id"] is None
    assert plain.headers["request-id"] is None
    for reply in (openai, missing, anthropic, stream, plain):
        assert reply.headers["X-NInfer-Version"] == version()


def test_models_report_the_limit_in_force(box: Box) -> None:
    listed = box.request("GET", "/v1/models").json
    assert listed["object"] == "list"
    model = listed["data"][0]
    assert model == box.request("GET", "/v1/models/nano").json
    assert (model["id"], model["object"], model["owned_by"]) == ("nano", "model", "ninfer")
    assert {model[name] for name in ("max_model_len", "context_window", "context_length")} == {2048}
    assert model["architecture"] == {"input_modalities": ["text"], "output_modalities": ["text"]}
    unknown = box.request("GET", "/v1/models/some/other")
    assert (unknown.status, unknown.error["code"], unknown.error["param"]) == (404, "model_not_found", "model")
    refused = box.chat(model="gpt-4o")
    assert (refused.status, refused.error["code"], refused.error["param"]) == (404, "model_not_found", "model")


def test_unknown_routes_and_methods(box: Box) -> None:
    assert box.request("GET", "/api/tags").error["code"] == "not_found"
    reply = box.request("GET", "/v1/chat/completions")
    assert (reply.status, reply.headers["Allow"], reply.error["code"]) == (405, "POST", "method_not_allowed")


def test_bad_bodies(box: Box) -> None:
    def post(data: bytes, headers: dict[str, str] | None = None) -> tuple[int, str]:
        reply = box.request("POST", "/v1/chat/completions", data, headers)
        assert reply.headers["Content-Type"].startswith("application/json")
        return reply.status, reply.error["code"]

    assert post(b"{") == (400, "invalid_json")
    assert post(b"") == (400, "invalid_json")
    assert post(b"null") == (400, "invalid_type")
    assert post(b"not gzip", {"Content-Encoding": "gzip"}) == (400, "invalid_body")
    assert post(b" " * (1024 * 1024 + 1)) == (413, "request_too_large")
    nan = b'{"model":"nano","messages":[{"role":"user","content":"x"}],"temperature":NaN}'
    reply = box.request("POST", "/v1/chat/completions", nan)
    assert (reply.status, reply.error["param"], reply.error["code"]) == (400, "temperature", "invalid_value")


def test_a_bomb_is_bounded_by_what_it_becomes(box: Box) -> None:
    import gzip

    body = gzip.compress(b" " * (64 * 1024 * 1024))
    reply = box.request("POST", "/v1/chat/completions", body, {"Content-Encoding": "gzip"})
    assert (reply.status, reply.error["code"]) == (413, "request_too_large")


def test_metrics(box: Box) -> None:
    def values() -> dict[str, float]:
        reply = box.request("GET", "/metrics")
        assert reply.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert reply.headers["Cache-Control"] == "no-store"
        lines = [line for line in reply.body.decode().splitlines() if not line.startswith("#")]
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines}

    before = values()
    usage = box.chat({"text": "one two three"}).json["usage"]
    assert box.chat({"text": "x", "error": "boom"}).status == 500
    assert box.chat(max_tokens=-1).status == 400  # refused before preparation: not counted
    after = values()

    def grew(name: str) -> float:
        return after[name] - before[name]

    assert grew('ninfer_requests_total{outcome="completed"}') == 1
    assert grew('ninfer_requests_total{outcome="failed"}') == grew("ninfer_response_failures_total") == 1
    assert grew('ninfer_requests_total{outcome="rejected"}') == 0
    assert grew("ninfer_request_duration_seconds_count") == 2
    assert (
        grew("llamacpp:tokens_predicted_total") == grew("ninfer_generation_tokens_total") > usage["completion_tokens"]
    )
    assert grew("ninfer_prompt_tokens_total") > usage["prompt_tokens"]
    assert grew("ninfer_time_to_first_token_seconds_count") == 2
    assert after['ninfer_model_info{model_name="nano",speculative_backend="none"}'] == after["ninfer_engine_ready"] == 1
    assert (after["ninfer_max_concurrency"], after["ninfer_max_context_tokens"]) == (2, 2048)
    assert not [name for name in after if name.endswith("_created")]


def test_the_api_needs_no_torch() -> None:
    code = (
        "import sys, engine.api.server, engine.cli.serve\n"
        "heavy = {'torch', 'transformers', 'triton'} & set(sys.modules)\n"
        "sys.exit(f'imports {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_configuration_errors_end_the_process(tmp_path: Path) -> None:
    file = tmp_path / "api.json"
    for text, said in (("{}", "artifact"), ('{"artifact":"a","socket":"b","port":"x"}', "port"), ("[", "api.json")):
        file.write_text(text)
        command = [sys.executable, "-m", "engine.api", "--config", str(file)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert said in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("path", ["/v1/models", "/v1/chat/completions"])
def test_options_has_no_handler(box: Box, path: str) -> None:
    assert box.request("OPTIONS", path).status == 405


def test_large_bodies_do_not_hold_up_health(box: Box) -> None:
    import threading

    text = "a quick brown fox " * 50_000  # 900 kB: far over the context, tokenised in a worker
    replies = []
    asking = threading.Thread(
        target=lambda: replies.append(
            box.request("POST", "/v1/chat/completions", chat_body(messages=[{"role": "user", "content": text}]))
        )
    )
    asking.start()
    slowest = 0.0
    while asking.is_alive():
        started = time.monotonic()
        assert box.request("GET", "/health").status == 200
        slowest = max(slowest, time.monotonic() - started)
        time.sleep(0.01)
    asking.join()
    assert slowest < 0.5
    assert (replies[0].status, replies[0].error["code"]) == (400, "context_length_exceeded")
    assert "2048" in replies[0].error["message"]
