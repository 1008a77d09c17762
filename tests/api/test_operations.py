"""Discovery, load, request log, CORS, wrong keys, OpenAPI (spec/serving.md §3, §5, §13; cases A14, X3, X11)."""

import asyncio
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from engine.api.app import create_app
from engine.api.auth import GUESSES, RECOVERY, Keys
from engine.api.config import ApiConfig
from engine.api.engine_link import EngineLink
from engine.api.openapi import OPERATIONS, document
from engine.api.records import redacted
from engine.api.reporter import interval_record
from engine.api.request_log import RequestLog
from engine.api.service import Service
from engine.api.totals import Totals
from engine.exits import ConfigurationError
from engine.protocol import LaneTokens, Statistics, Tokens, pack_ids
from engine.version import version
from tests.api.anthropic_box import ask
from tests.api.box import Box, running


def test_props(box: Box) -> None:
    found = box.request("GET", "/props").json
    params = found["default_generation_settings"]["params"]
    assert found["default_generation_settings"]["n_ctx"] == 2048
    assert params == {
        "n_predict": -1, "max_tokens": -1, "temperature": 1.0, "top_k": 20, "top_p": 0.95, "min_p": 0.0,
        "presence_penalty": 0.0, "frequency_penalty": 0.0,
    }  # fmt: skip
    assert (found["total_slots"], found["model_alias"]) == (2, "nano")
    assert found["modalities"] == {"vision": False, "audio": False}
    assert found["build_info"] == f"ninfer {version()}"


LOAD = {
    "capacity": {
        "max_concurrency", "max_pending_requests", "max_admitted_requests", "max_context", "kv_capacity_tokens",
        "kv_capacity_pages", "kv_page_tokens", "device_state_slots", "host_context_bytes",
    },
    "requests": {
        "admitted", "running", "prefilling", "decode_ready", "waiting", "paused", "replaying", "materializing",
    },
    "occupancy": {
        "device_main_kv_pages", "device_main_kv_tokens", "device_state_slots", "host_state_slots", "host_kv_bytes",
        "host_context_bytes",
    },
    "counters": {
        "computed_prefill_tokens", "committed_decode_tokens", "reused_prompt_tokens", "decode_rounds",
        "decode_row_rounds",
    },
    "host": {"active_seconds", "device_wait_seconds"},
}  # fmt: skip


def test_load(box: Box) -> None:
    before = box.request("GET", "/v1/load").json
    assert box.chat({"text": "one two three"}).status == 200
    reply = box.request("GET", "/v1/load")
    assert reply.headers["Cache-Control"] == "no-store"
    after = reply.json
    assert set(after) == {"object", "model", "uptime_seconds", "last_request"} | set(LOAD)
    for name, keys in LOAD.items():
        assert set(after[name]) == keys
    assert (after["object"], after["model"]) == ("ninfer.load", "nano")
    assert after["uptime_seconds"] >= before["uptime_seconds"] >= 0
    capacity = after["capacity"]
    assert (capacity["max_concurrency"], capacity["max_admitted_requests"], capacity["max_context"]) == (2, 4, 2048)
    assert capacity["kv_capacity_pages"] * capacity["kv_page_tokens"] == capacity["kv_capacity_tokens"]
    grown = after["counters"]["committed_decode_tokens"] - before["counters"]["committed_decode_tokens"]
    last = after["last_request"]
    assert grown == last["completion_tokens"] - 1  # the first token comes from the prefill
    assert after["counters"]["decode_row_rounds"] - before["counters"]["decode_row_rounds"] == grown  # one a round
    assert box.chat({"text": "x"}, max_tokens=1).status == 200
    assert box.request("GET", "/v1/load").json["last_request"] == last  # one token says nothing about pace


def test_models_for_every_client(box: Box) -> None:
    listed = box.request("GET", "/v1/models").json
    assert listed["models"] == []  # Codex
    assert (listed["has_more"], listed["first_id"], listed["last_id"]) == (False, "nano", "nano")  # Anthropic
    model = listed["data"][0]
    assert (model["type"], model["display_name"]) == ("model", "nano")
    assert model["created_at"].endswith("Z")


def test_a_head_request_needs_no_key_and_tells_nothing(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("first\nsecond\n")
    log = tmp_path / "requests.jsonl"
    settings: dict[str, Any] = {"log_stats_interval_ms": 100, "request_log_jsonl": str(log), "cors": True}
    with running(tmp_path, api_key_file=str(tmp_path / "keys"), **settings) as box:
        head = box.request("HEAD", "/")
        assert (head.status, head.body) == (200, b"")
        assert box.request("GET", "/", headers={"x-api-key": "wrong"}).status == 401
        _cors(box)
        _salts(box)
        _logged(box, log)
        _guesses(box)
        assert box.api is not None
        box.api.terminate()
        box.api.wait()
        last = json.loads(log.read_text().splitlines()[-1])
        assert (last["event"], last["final_interval"]) == ("throughput", True)


FIRST, SECOND = {"x-api-key": "first"}, {"Authorization": "Bearer second"}


def _cors(box: Box) -> None:
    origin = {"Origin": "https://page.example"}
    preflight = box.request("OPTIONS", "/v1/messages", headers=origin | {"Access-Control-Request-Method": "POST"})
    assert (preflight.status, preflight.body) == (204, b"")
    for reply in (
        preflight,
        box.request("OPTIONS", "/no/such/path", headers=origin),
        box.request("GET", "/health", headers=origin),
        box.request("GET", "/v1/models", headers=origin),  # 401
        box.request("GET", "/nothing", headers=origin | FIRST),  # 404
        box.request("POST", "/v1/chat/completions", {"model": "nano"}, origin | FIRST),
    ):
        assert reply.headers["Access-Control-Allow-Origin"] == "*"
        assert reply.headers["Access-Control-Expose-Headers"] == "x-request-id, request-id"
        assert "anthropic-version" in reply.headers["Access-Control-Allow-Headers"]
        assert reply.headers["Access-Control-Allow-Methods"] == "GET, POST, DELETE, OPTIONS"
        assert reply.headers["Access-Control-Allow-Credentials"] is None


def _salts(box: Box) -> None:
    body = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}
    for headers in (FIRST, SECOND, FIRST):
        assert box.request("POST", "/v1/messages", body, headers).status == 200
    first, second, again = (one["salt"] for one in box.seen("submit")[-3:])
    assert first == again != second
    assert first
    assert second


def _logged(box: Box, log: Path) -> None:
    body = {"model": "label", "max_tokens": 4, "messages": [{"role": "user", "content": "hi"}]}
    done = box.request("POST", "/v1/messages", body, SECOND)
    many = body | {"messages": [{"role": "user", "content": "word " * 4000}]}
    assert box.request("POST", "/v1/messages", many, SECOND).status == 400
    broken = body | {"messages": [{"role": "user", "content": '{"script": {"text": "x", "error": "boom"}}'}]}
    assert box.request("POST", "/v1/messages", broken, SECOND).status == 500
    assert box.request("POST", "/v1/messages", body | {"temperature": 7}, SECOND).status == 400  # not logged
    deadline = time.monotonic() + 10
    while True:
        records = [json.loads(line) for line in log.read_text().splitlines()]
        events = [one["event"] for one in records]
        if "request_error" in events and "throughput" in events:
            break
        assert time.monotonic() < deadline, events
        time.sleep(0.05)
    for one in records:
        assert (one["artifact_type"], one["schema_version"]) == ("ninfer_serve_request_log", 26)
        assert one["server_instance_id"].startswith("serve-")
        assert abs(one["timestamp_unix_ms"] / 1000 - time.time()) < 60
    assert events[0] == "server_start"
    start = records[0]
    assert start["server"]["api_key_configured"] is True
    assert (start["server"]["cors_enabled"], start["engine"]["max_context"]) == (True, 2048)
    assert start["sampling_defaults"]["omitted_seed"] == "random"
    assert "first" not in json.dumps(start)

    def of(event: str) -> list[dict[str, Any]]:
        return [one for one in records if one["event"] == event]

    numbers = [one["request"]["request_id"] for one in of("request_start")]
    assert numbers == sorted(numbers)
    ended = [one["request"]["request_id"] for one in (*of("request_done"), *of("request_error"))]
    assert sorted(ended) == numbers  # each start has exactly one end
    (rejected,) = of("request_rejected")
    assert (rejected["phase"], rejected["error"]["code"]) == ("prepare", "context_length_exceeded")
    (error,) = of("request_error")
    assert "boom" not in json.dumps(error)
    last = of("request_done")[-1]
    request, result = last["request"], last["result"]
    assert request["http_request_id"] == done.headers["request-id"]
    assert request["response_id"] == done.json["id"]
    assert (request["protocol"], request["model"], request["stream"]) == ("anthropic_messages", "label", False)
    assert (request["requested_output_tokens"], request["requested_output_tokens_source"]) == (4, "client")
    assert len(request["sampling"]) == 7
    assert result["completion_tokens"] == done.json["usage"]["output_tokens"] == len(result["generated_token_ids"])
    assert result["finish_reason"] in ("stop_token", "output_limit")
    timings = last["timings_seconds"]
    assert timings["decode"] == 0.003
    assert 0 < timings["prepare"] <= timings["ttft"] <= timings["total"]
    assert last["speculative"]["backend"] == "none"
    interval = of("throughput")[0]
    assert interval["final_interval"] is False
    assert interval["tokens"]["committed_decode"] >= 0
    assert interval["interval_seconds"] >= 0.1


def _guesses(box: Box) -> None:
    """Wrong keys are refused without a look after a while; keys that were right before still work (X3)."""
    statuses = [
        box.request("GET", "/v1/models", headers={"x-api-key": f"guess-{number}"}).status
        for number in range(GUESSES + 3)
    ]
    assert statuses[0] == 401
    assert statuses[-1] == 429
    limited = box.request("GET", "/v1/models", headers={"x-api-key": "guess"})
    assert (limited.error["code"], limited.headers["Retry-After"]) == ("too_many_wrong_keys", "10")
    anthropic = box.request("POST", "/v1/messages", {}, {"x-api-key": "guess"})
    assert (anthropic.status, anthropic.json["error"]["type"]) == (529, "overloaded_error")
    assert box.request("GET", "/v1/models", headers=FIRST).status == 200
    assert box.request("GET", "/health").status == 200
    assert "guess" not in box.api_log.read_text()


def test_guesses_are_counted_for_each_peer() -> None:
    clock = [0.0]
    keys = Keys(["right", "other"], now=lambda: clock[0])

    def tried(key: str, peer: str) -> str:
        return keys.decide({"x-api-key": key}, peer).verdict

    assert tried("right", "10.0.0.1") == "accepted"
    assert {tried("wrong", "10.0.0.1") for _ in range(GUESSES)} == {"refused"}
    assert tried("wrong", "10.0.0.1") == "too_often"
    assert tried("right", "10.0.0.1") == "accepted"  # it was right before
    assert tried("other", "10.0.0.1") == "too_often"  # it was not, and is not looked at
    assert tried("other", "10.0.0.2") == "accepted"
    assert keys.decide({}, "10.0.0.1").verdict == "refused"  # no guess at all
    clock[0] += RECOVERY
    assert tried("other", "10.0.0.1") == "accepted"
    assert {tried("wrong", f"2001:db8::{number:x}") for number in range(GUESSES)} == {"refused"}
    assert tried("wrong", "2001:db8::ffff") == "too_often"  # one network, one peer
    assert tried("wrong", "2001:db8:0:1::1") == "refused"
    assert tried("wrong", "not an address") == "refused"


def test_what_is_remembered_of_peers_is_bounded() -> None:
    from engine.api.auth import PEERS

    keys = Keys(["right"])
    for number in range(PEERS + 100):
        keys.decide({"x-api-key": "wrong"}, f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
    assert len(keys._peers) == PEERS


def test_one_key_shares_the_cache() -> None:
    assert Keys(["only"]).decide({"x-api-key": "only"}, None).cache_salt == b""
    assert Keys([]).decide({}, None).cache_salt == b""
    salts = {Keys(["a", "b"]).decide({"x-api-key": key}, None).cache_salt for key in "ab"}
    assert len(salts) == 2
    assert b"" not in salts


def test_the_log_names_what_it_cannot_write(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="request-log-jsonl"):
        RequestLog(tmp_path / "no" / "such" / "folder")
    artifact = tmp_path / "a.ninfer"
    artifact.touch()
    (tmp_path / "link").symlink_to(artifact)
    with pytest.raises(ConfigurationError, match="is the artifact"):
        RequestLog(tmp_path / "link", not_at=artifact)
    with pytest.raises(ConfigurationError, match="is the artifact"):
        Service(ApiConfig(artifact=str(artifact), socket="s", request_log_jsonl=str(artifact)))
    log = RequestLog(tmp_path / "log")
    log.write("one", {"a": 1})
    log.close()
    log = RequestLog(tmp_path / "log")  # appends
    log.write("two", {"b": "ü"})
    log.close()
    log.write("three", {})  # nobody listens any more
    assert [json.loads(line)["event"] for line in (tmp_path / "log").read_text().splitlines()] == ["one", "two"]


def test_keys_stay_out_of_the_arguments() -> None:
    given = ["serve", "--api-key", "secret", "--port", "1", "--api-key=secret"]
    assert redacted(given) == ["serve", "--api-key", "<redacted>", "--port", "1", "--api-key=<redacted>"]


def test_sums_survive_a_restart_of_the_engine() -> None:
    totals = Totals()
    totals.statistics(Statistics(), Statistics(prompt_tokens=100, rounds=10))
    totals.statistics(Statistics(), Statistics(prompt_tokens=7, rounds=1))  # a new engine counts from zero
    before = totals.copy()
    totals.statistics(Statistics(prompt_tokens=7, rounds=1), Statistics(prompt_tokens=17, rounds=5))
    totals.decoded(2, 2)
    totals.decoded(1, 3)
    assert (totals.prompt_tokens, totals.rounds) == (117, 15)
    found = interval_record(before, totals, Statistics(running=3, prefilling=1), 2.0)
    assert found["tokens"] == {"computed_prefill": 10, "committed_decode": 5, "reused_prompt": 0}
    assert found["throughput_tokens_per_second"] == {"prefill": 5.0, "decode": 2.5}
    assert found["decode_batch"] == {"rounds": 4, "row_rounds": 3, "average_size": 0.75}
    assert found["scheduler"]["decode_ready"] == 2


async def test_first_tokens_are_not_decoding(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    link = EngineLink(tmp_path / "s", heartbeat=1, stall=1, on_round=lambda rows, tokens: seen.append((rows, tokens)))
    link._outgoing = asyncio.Queue()
    streams = [link.submit(_submit) for _ in range(2)]

    def tokens(*counts: int) -> Tokens:
        lanes = [LaneTokens(id=one.id, token_ids=pack_ids([1] * n)) for one, n in zip(streams, counts, strict=True)]
        return Tokens(round=1, lanes=tuple(lanes))

    for counts in ((1, 0), (1, 1), (2, 3)):
        link._take(tokens(*counts))
    assert seen == [(1, 1), (2, 5)]


def _submit(number: int) -> Any:
    from engine.protocol import Sampling, Submit

    return Submit(id=number, token_ids=b"", sampling=Sampling(), max_tokens=1)


def test_the_description_has_every_route(tmp_path: Path) -> None:
    app = create_app(Service(ApiConfig(artifact=str(tmp_path / "a"), socket="s")))
    served = {
        (route.method.lower(), route.resource.canonical.replace("{id:.+}", "{id}"))
        for route in app.router.routes()
        if route.resource is not None
    }
    heads = {("head", path) for method, path in served if method == "get"} - {("head", "/")}  # one of its own
    assert {(one.method, one.path) for one in OPERATIONS} == served - heads
    described = document()
    assert described["openapi"] == "3.1.0"
    text = json.dumps(described)
    for reference in set(re.findall(r'"#/components/schemas/([^"]+)"', text)):
        assert reference in described["components"]["schemas"]
    chat = described["components"]["schemas"]["ChatRequest"]
    assert set(chat["required"]) == {"model", "messages"}
    assert chat["properties"]["temperature"]["anyOf"][0] == {"maximum": 2, "minimum": 0, "type": "number"}


@pytest.mark.parametrize("method", ["HEAD", "GET"])
def test_a_page_without_cors_gets_no_permission(box: Box, method: str) -> None:
    reply = box.request(method, "/health", headers={"Origin": "https://page.example"})
    assert reply.headers["Access-Control-Allow-Origin"] is None


def fuzz(box: Box, examples: int, *more: str) -> None:
    """Run schemathesis; what it finds is in the assertion."""
    command = [
        sys.executable, "-m", "schemathesis.cli", "run", f"http://127.0.0.1:{box.port}/openapi.json",
        "--checks", "not_a_server_error,response_schema_conformance,content_type_conformance",
        "--max-examples", str(examples), "--seed", "1", "--suppress-health-check", "all", "--no-color",
        "--no-shrink", *more,
    ]  # fmt: skip
    done = subprocess.run(command, cwd=box.folder, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    log = box.api_log.read_text()
    assert not [name for name in ("request_failed", "stream_failed") if name in log], log[-6000:]


def test_the_description_is_true(box: Box) -> None:
    fuzz(box, 1, "--phases", "fuzzing", "--include-path-regex", "completions|messages|props|load|responses$")


@pytest.mark.nightly
def test_the_description_is_true_for_long(box: Box) -> None:
    fuzz(box, 60)


def test_usage_counts_what_was_reused(box: Box) -> None:
    message = ask(box, {"text": "ok", "cached": 7}).json
    assert message["usage"]["cache_read_input_tokens"] == 7
    plain = ask(box, {"text": "ok", "cached": 0}).json
    assert message["usage"]["input_tokens"] == plain["usage"]["input_tokens"] - 7
