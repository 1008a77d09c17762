"""The Responses API against the scripted engine, over real sockets (spec/serving.md §8, cases A1, A5, A8)."""

import json
import re
import socket
import time
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.api.box import Box, running
from tests.api.responses import OFF, ask, bare, body, checked, events_of, scripted, stream

HERE: dict[str, Any] = {
    "type": "function",
    "name": "look",
    "parameters": {
        "type": "object",
        "properties": {
            "zip": {"type": "string"}, "limit": {"type": "integer"}, "flag": {"type": "boolean"},
            "tags": {"type": "array", "items": {"type": "integer"}}, "note": {"type": ["string", "null"]},
        },
    },
}  # fmt: skip


def call(name: str, **parameters: str) -> str:
    """The wire format of one call."""
    inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters.items())
    return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"


@pytest.mark.parametrize(
    ("script", "fields"),
    [
        ({"text": "plain words"}, {}),
        ({"text": "你好 🌍 é"}, {}),
        ({"text": "a thought</think>\n\nan answer"}, {"reasoning": None}),
        ({"text": "a thought</think>\n\nan answer"}, {"reasoning": None, "include": ["reasoning.encrypted_content"]}),
        ({"text": "a thought then the model stops"}, {"reasoning": None}),
        ({"text": "word " * 40}, {"reasoning": None, "max_output_tokens": 20}),
        ({"text": "word " * 40}, {"max_output_tokens": 20}),
        ({"text": "an answer with </think> in it"}, {}),
        ({"text": "x"}, {"max_output_tokens": 0}),
        ({"text": "", "ids": []}, {}),
        ({"text": "Let me.\n\n" + call("look", zip="02134") + "\n" + call("look")}, {"tools": [HERE]}),
        ({"text": "hm</think>\n\n" + call("look", zip="1")}, {"tools": [HERE], "reasoning": None}),
        ({"text": "I go. " + call("look", zip="1")}, {"tools": [HERE], "reasoning": None}),
        ({"text": call("look", zip="02134")}, {"tools": [HERE], "tool_choice": "none"}),
        ({"text": call("look", zip="02134") + " and prose"}, {"tools": [HERE]}),
        ({"text": call("look", zip="02134 " * 20)}, {"tools": [HERE], "max_output_tokens": 30}),
        ({"text": call("look") + "\n" + call("look")}, {"tools": [HERE], "parallel_tool_calls": False}),
    ],
)
@pytest.mark.parametrize("each", [1, 7])
def test_stream_and_whole_say_the_same(box: Box, script: dict[str, Any], fields: dict[str, Any], each: int) -> None:
    whole = ask(box, script | {"each": each}, **fields).json
    events = stream(box, script | {"each": each}, **fields)
    last = events[-1]["response"]
    strip = [re.sub(r'"id": "[a-z]+_[0-9a-f]+"', "", json.dumps(bare(one))) for one in (whole, last)]
    assert strip[0] == strip[1]
    assert events[-1]["type"] == f"response.{whole['status']}"


def test_the_whole_answer(box: Box) -> None:
    reply = ask(box, {"text": "hm</think>\n\nyes"}, reasoning={"effort": "low", "summary": "auto"}, metadata={"a": "b"})
    assert reply.headers["x-request-id"].startswith("req_")
    whole = reply.json
    assert re.fullmatch(r"resp_[0-9a-f]{32}", whole.pop("id"))
    assert abs(whole.pop("created_at") - time.time()) < 10
    assert abs(whole.pop("completed_at") - time.time()) < 10
    thought, message = whole.pop("output")
    usage = whole.pop("usage")
    assert whole == {
        "object": "response", "status": "completed", "error": None, "incomplete_details": None, "background": False,
        "instructions": None, "max_output_tokens": None, "max_tool_calls": None, "metadata": {"a": "b"},
        "model": "nano", "parallel_tool_calls": True, "previous_response_id": None,
        "reasoning": {"effort": "low", "summary": None}, "service_tier": "default", "store": True,
        "temperature": 1.0, "top_p": 0.95, "text": {"format": {"type": "text"}}, "tool_choice": "auto", "tools": [],
        "top_logprobs": 0, "truncation": "disabled",
    }  # fmt: skip
    assert re.fullmatch(r"rs_[0-9a-f]{32}", thought.pop("id"))
    assert thought == {
        "type": "reasoning", "status": "completed", "summary": [],
        "content": [{"type": "reasoning_text", "text": "hm"}],
    }  # fmt: skip
    assert re.fullmatch(r"msg_[0-9a-f]{32}", message.pop("id"))
    assert message == {
        "type": "message", "status": "completed", "role": "assistant",
        "content": [{"type": "output_text", "text": "yes", "annotations": []}],
    }  # fmt: skip
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert 0 < usage["output_tokens_details"]["reasoning_tokens"] < usage["output_tokens"]
    assert usage["input_tokens_details"] == {"cached_tokens": 0}


def test_order_of_a_stream(box: Box) -> None:
    script = {"text": "hm</think>\n\nLet me.\n\n" + call("look", zip="0") + "\n" + call("note__put", input="a")}
    tools = [HERE, {"type": "namespace", "name": "note", "tools": [{"type": "custom", "name": "put"}]}]
    kinds = [event["type"].removeprefix("response.") for event in stream(box, script, tools=tools, reasoning=None)]
    once = [kind for index, kind in enumerate(kinds) if index == 0 or kind != kinds[index - 1]]
    part = ["content_part.done", "output_item.done"]
    assert once == [
        "created", "in_progress",
        "output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done", *part,
        "output_item.added", "content_part.added", "output_text.delta", "output_text.done", *part,
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done",
        "output_item.added", "custom_tool_call_input.delta", "custom_tool_call_input.done", "output_item.done",
        "completed",
    ]  # fmt: skip


def test_a_cut_thought_is_an_incomplete_reasoning_item(box: Box) -> None:
    whole = ask(box, {"text": "word " * 40}, reasoning=None, max_output_tokens=20).json
    assert (whole["status"], whole["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert whole["completed_at"] is None
    (thought,) = whole["output"]
    assert (thought["type"], thought["status"]) == ("reasoning", "incomplete")
    assert thought["content"][0]["text"].startswith("word word")


def test_arguments_have_their_declared_types(box: Box) -> None:
    text = call("look", zip="02134", limit="5", flag="True", tags='["10"]', note="4")
    events = stream(box, {"text": "Let me.\n\n" + text}, tools=[HERE])
    message, made = events[-1]["response"]["output"]
    arguments = json.loads(made["arguments"])
    assert list(arguments) == ["zip", "limit", "flag", "tags", "note"]
    assert (arguments["zip"], arguments["limit"], arguments["flag"]) == ("02134", 5, True)
    assert (arguments["tags"], arguments["note"]) == (["10"], "4")
    assert message["content"][0]["text"] == "Let me."
    assert re.fullmatch(r"fc_[0-9a-f]{32}", made["id"])
    assert re.fullmatch(r"call_[0-9a-f]{16}", made["call_id"])


def test_a_custom_tool_gets_its_text_byte_for_byte(box: Box) -> None:
    patch = '*** Begin\n+  "x" <é> \\n\n*** End'
    tools = [{"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "lark", "definition": "s"}}]
    (made,) = ask(box, {"text": call("patch", input=patch)}, tools=tools).json["output"]
    assert (made["type"], made["name"], made["input"]) == ("custom_tool_call", "patch", patch)
    assert made["id"].startswith("ctc_")


CODEX_TOOLS: list[dict[str, Any]] = [
    {"type": "function", "name": "shell", "description": "run", "strict": False,
     "parameters": {"type": "object", "properties": {"command": {"type": "array", "items": {"type": "string"}}},
                    "required": ["command"], "additionalProperties": False}},
    {"type": "namespace", "name": "notes", "description": "Notes of this project.", "tools": [
        {"type": "function", "name": "write", "description": "put one", "strict": False,
         "parameters": {"type": "object", "properties": {"text": {"type": "string"}}}}]},
    {"type": "web_search", "external_web_access": False},
]  # fmt: skip


def codex(*items: dict[str, Any]) -> dict[str, Any]:
    """A request with the twelve fields that Codex sends, of our own words."""
    developer = {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be careful."}]}
    return {
        "model": "nano", "instructions": "You write code.", "input": [developer, *items], "tools": CODEX_TOOLS,
        "tool_choice": "auto", "parallel_tool_calls": False, "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False, "stream": True, "include": ["reasoning.encrypted_content"], "prompt_cache_key": "thread-1",
        "client_metadata": {"origin": "test", "turn": "1"},
    }  # fmt: skip


def test_a_request_like_codex_and_its_next_turn(box: Box) -> None:
    script = {"text": "I should run it.</think>\n\n" + call("notes__write", text="done")}
    question = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": scripted(script)}]}
    first = box.request("POST", "/v1/responses", codex(question))
    events = checked(events_of(first.body))
    thought, made = events[-1]["response"]["output"]
    assert (made["namespace"], made["name"], made["arguments"]) == ("notes", "write", '{"text":"done"}')
    assert [tool["type"] for tool in events[-1]["response"]["tools"]] == ["function", "namespace"]
    # Codex sends the clear text of a thought back as null, without ids.
    back = {"type": "reasoning", "summary": [], "content": None, "encrypted_content": thought["encrypted_content"]}
    again = {key: made[key] for key in ("type", "name", "namespace", "arguments", "call_id")}
    answer = scripted({"text": "All done.", "each": 3})
    outcome = {"type": "function_call_output", "call_id": made["call_id"], "output": answer}
    counted = [
        box.request("POST", "/v1/responses/input_tokens", {
            "model": "nano", "input": codex(question, *extra)["input"], "tools": CODEX_TOOLS,
        }).json["input_tokens"]
        for extra in ([], [back, again, outcome], [again, outcome])
    ]  # fmt: skip
    assert counted[0] < counted[2] < counted[1]  # the sealed thought reaches the prompt
    second = checked(events_of(box.request("POST", "/v1/responses", codex(question, back, again, outcome)).body))
    assert second[-1]["response"]["output"][0]["content"][0]["text"] == "All done."
    missing = box.request("GET", f"/v1/responses/{events[-1]['response']['id']}")
    assert (missing.status, missing.error["code"], missing.error["param"]) == (
        404, "response_not_found", "response_id",
    )  # fmt: skip


def test_a_chain(box: Box) -> None:
    first = ask(box, {"text": "one"}, instructions="Only for now.").json
    seen = len(box.seen("submit"))
    second = ask(box, {"text": "two"}, previous_response_id=first["id"]).json
    assert second["previous_response_id"] == first["id"]
    assert second["instructions"] is None
    apart = ask(box, {"text": "two"}).json
    with_history, alone = (one["prompt"] for one in box.seen("submit")[seen:])
    assert with_history > alone + 10
    assert with_history == second["usage"]["input_tokens"] > apart["usage"]["input_tokens"]
    count = {"model": "nano", "input": scripted({"text": "two"}), "reasoning": OFF, "previous_response_id": first["id"]}
    assert box.request("POST", "/v1/responses/input_tokens", count).json == {
        "object": "response.input_tokens", "input_tokens": with_history,
    }  # fmt: skip
    assert box.request("DELETE", f"/v1/responses/{first['id']}").json == {
        "id": first["id"], "object": "response.deleted", "deleted": True,
    }  # fmt: skip
    assert box.request("GET", f"/v1/responses/{first['id']}").status == 404
    assert box.request("DELETE", f"/v1/responses/{first['id']}").status == 404
    lost = ask(box, previous_response_id=first["id"])
    assert (lost.status, lost.error["code"], lost.error["param"]) == (404, "response_not_found", "previous_response_id")
    third = ask(box, {"text": "three"}, previous_response_id=second["id"]).json  # although its grandparent is gone
    assert third["usage"]["input_tokens"] > with_history
    assert box.request("GET", f"/v1/responses/{third['id']}").json == third


def test_a_chain_with_a_call_and_its_result(box: Box) -> None:
    first = ask(box, {"text": call("look", zip="1")}, tools=[HERE]).json
    made = first["output"][0]
    outcome = {"type": "function_call_output", "call_id": made["call_id"], "output": scripted({"text": "seen"})}
    second = ask(box, input=[outcome], previous_response_id=first["id"], tools=[HERE]).json
    assert second["output"][0]["content"][0]["text"] == "seen"
    twice = ask(box, input=[outcome], previous_response_id=second["id"], tools=[HERE])
    assert (twice.status, twice.error["code"], twice.error["param"]) == (400, "invalid_tool_history", "input[0]")


def test_preserved_thoughts_are_inherited(box: Box) -> None:
    first = ask(box, {"text": "a long thought</think>\n\none"}, reasoning=None, preserve_thinking=True).json
    lengths = [
        ask(box, {"text": "x"}, previous_response_id=first["id"], **extra).json["usage"]["input_tokens"]
        for extra in ({}, {"preserve_thinking": True}, {"preserve_thinking": False})
    ]
    assert lengths[0] == lengths[1] > lengths[2]


def test_input_items(box: Box) -> None:
    items = [
        {"role": "developer", "content": "rule", "id": "mine"},
        {"role": "assistant", "content": "earlier"},
        {"role": "user", "content": scripted({"text": "x"})},
    ]
    made = ask(box, input=items).json["id"]

    def page(query: str = "") -> Any:
        return box.request("GET", f"/v1/responses/{made}/input_items{query}").json

    whole = page("?order=asc")
    assert [item["role"] for item in whole["data"]] == ["developer", "assistant", "user"]
    assert whole["data"][0] == {
        "id": "mine", "type": "message", "status": "completed", "role": "developer",
        "content": [{"type": "input_text", "text": "rule"}],
    }  # fmt: skip
    assert whole["data"][1]["content"] == [{"type": "output_text", "text": "earlier", "annotations": []}]
    assert (whole["object"], whole["has_more"]) == ("list", False)
    assert page()["data"] == whole["data"][::-1]
    first = page("?limit=2&include[]=message.input_image.image_url")
    assert (len(first["data"]), first["has_more"]) == (2, True)
    assert (first["first_id"], first["last_id"]) == (first["data"][0]["id"], first["data"][1]["id"])
    rest = page(f"?limit=2&after={first['last_id']}")
    assert ([item["id"] for item in rest["data"]], rest["has_more"]) == (["mine"], False)
    assert page("?after=mine") == {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}
    for query, code in {
        "limit=0": "invalid_pagination", "limit=101": "invalid_pagination", "limit=x": "invalid_pagination",
        "limit=%D9%A3": "invalid_pagination", "order=up": "invalid_pagination", "after=nobody": "invalid_pagination",
        "include=x": "include_not_supported", "before=x": "unknown_parameter",
    }.items():  # fmt: skip
        reply = box.request("GET", f"/v1/responses/{made}/input_items?{query}")
        assert (reply.status, reply.error["code"]) == (400, code), query
        assert reply.error["param"] == query.partition("=")[0]


def test_other_routes_and_their_refusals(box: Box) -> None:
    made = ask(box, {"text": "x"}).json["id"]
    cases = [
        ("GET", f"/{made}?include=x", 400, "include_not_supported", "include"),
        ("GET", f"/{made}?starting_after=3", 400, "stream_recovery_not_supported", "starting_after"),
        ("GET", f"/{made}?stream=true", 400, "retrieve_stream_not_supported", "stream"),
        ("GET", f"/{made}?colour=red", 400, "unknown_parameter", "colour"),
        ("GET", "/resp_0", 404, "response_not_found", "response_id"),
        ("GET", "/resp_0/input_items", 404, "response_not_found", "response_id"),
        ("POST", "/resp_0/cancel", 404, "response_not_found", "response_id"),
        ("POST", f"/{made}/cancel", 400, "background_not_supported", None),
        ("POST", "/compact", 400, "compaction_not_supported", "context_management"),
        ("DELETE", "/resp_0", 404, "response_not_found", "response_id"),
        ("PUT", f"/{made}", 405, "method_not_allowed", None),
    ]
    for method, path, status, code, param in cases:
        reply = box.request(method, f"/v1/responses{path}")
        assert (reply.status, reply.error["code"], reply.error["param"]) == (status, code, param), path
        assert reply.headers["x-request-id"].startswith("req_")
    assert box.request("GET", f"/v1/responses/{made}?stream=false&include_obfuscation=true&include=").status == 200


@pytest.mark.parametrize(
    ("fields", "status", "code", "param"),
    [
        ({"model": "other"}, 404, "model_not_found", "model"),
        ({"unknown": 1}, 400, "unknown_parameter", "unknown"),
        ({"input": "word " * 3000}, 400, "context_length_exceeded", "input"),
        (
            {"chat_template_kwargs": {"reasoning_effort": "low"}},
            400, "conflicting_template_option", "reasoning.effort",
        ),
        ({"chat_template_kwargs": {"tokenize": 1}}, 400, "invalid_template_option", "chat_template_kwargs.tokenize"),
        ({"previous_response_id": "resp_0"}, 404, "response_not_found", "previous_response_id"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("streamed", [True, False])
def test_what_is_refused_before_the_stream(
    box: Box, fields: dict[str, Any], status: int, code: str, param: str, *, streamed: bool
) -> None:
    reply = ask(box, stream=streamed, **fields)
    assert (reply.status, reply.error["code"], reply.error["param"]) == (status, code, param)


@pytest.mark.parametrize("path", ["", "/input_tokens"])
def test_counting_and_creating_refuse_alike(box: Box, path: str) -> None:
    reply = box.request("POST", f"/v1/responses{path}", {"model": "nano", "input": [{"role": "user"}]})
    assert (reply.status, reply.error["param"]) == (400, "input[0].content")
    assert box.request("POST", f"/v1/responses{path}", b"{").error["code"] == "invalid_json"


def test_counting_says_how_long_a_prompt_is_that_does_not_fit(box: Box) -> None:
    reply = box.request("POST", "/v1/responses/input_tokens", {"model": "nano", "input": "word " * 3000})
    assert reply.json["input_tokens"] > 2048


@pytest.mark.parametrize(
    ("script", "status", "kind", "code"),
    [
        ({"reject": "overloaded"}, 429, "rate_limit_error", "server_overloaded"),
        ({"reject": "queue_timeout"}, 503, "server_error", "request_queue_timeout"),
        ({"text": "a", "error": "KeyError: secret"}, 500, "server_error", None),
    ],
)
def test_what_fails_after_the_start(box: Box, script: dict[str, Any], status: int, kind: str, code: str | None) -> None:
    whole = ask(box, script)
    assert (whole.status, whole.error["type"], whole.error["code"]) == (status, kind, code)
    events = stream(box, script)
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["error"] == {"code": code or kind, "message": whole.error["message"]}
    assert "KeyError" not in json.dumps(events[2:]) + whole.body.decode()


def test_a_dead_engine_ends_the_stream_with_one_terminal_event(tmp_path: Path) -> None:
    with running(tmp_path) as box:
        begun = time.monotonic()
        events = stream(box, {"text": "word " * 50, "delay": 0.01, "die_after": 5})
        assert time.monotonic() - begun < 2
        assert events[-1]["type"] == "response.failed"
        assert events[-1]["response"]["error"]["code"] == "service_unavailable"
        said = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
        assert said
        (message,) = events[-1]["response"]["output"]
        assert (message["status"], message["content"][0]["text"]) == ("incomplete", said)
        assert box.request("GET", f"/v1/responses/{events[-1]['response']['id']}").status == 503


def test_a_failed_answer_is_not_stored(box: Box) -> None:
    events = stream(box, {"text": "a", "error": "boom"})
    assert box.request("GET", f"/v1/responses/{events[-1]['response']['id']}").status == 404


def test_silence_is_filled_with_comments(box: Box) -> None:
    reply = ask(box, {"text": "a b", "queue": 0.5, "prefill": 0.5, "delay": 0.3}, stream=True)
    assert reply.body.count(b": keep-alive\n\n") >= 4
    checked(events_of(reply.body))


@pytest.mark.parametrize("streamed", [True, False])
def test_a_client_that_leaves_frees_its_lane(box: Box, *, streamed: bool) -> None:
    cancels, admitted = len(box.seen("cancel")), len(box.seen("admitted"))
    data = json.dumps(body({"text": "word " * 400, "delay": 0.02}, stream=streamed)).encode()
    with socket.create_connection(("127.0.0.1", box.port), timeout=20) as connection:
        head = f"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
        connection.sendall(head.encode() + data)
        begin = box.await_seen("admitted", admitted + 1)
        while streamed and b"word" not in connection.recv(4096):
            pass
    left = time.monotonic()
    assert box.await_seen("cancel", cancels + 1)["id"] == begin["id"]
    assert time.monotonic() - left < 1


def test_the_store_is_bounded(tmp_path: Path) -> None:
    bounds = {"response_store_max_records": 2, "response_store_max_mib": 1}
    with running(tmp_path, {"context": 10**6}, **bounds) as box:
        made = [ask(box, {"text": str(number)}).json["id"] for number in range(3)]
        found = [box.request("GET", f"/v1/responses/{one}").status for one in made]
        assert found == [404, 200, 200]
        passing = ask(box, {"text": "y"}, store=False).json
        assert passing["store"] is False
        assert box.request("GET", f"/v1/responses/{passing['id']}").status == 404
        large = "word " * 210_000 + scripted({"text": "said"})
        whole = ask(box, input=large)
        assert (whole.status, whole.error["type"]) == (500, "server_error")
        assert whole.error["code"] == "response_store_capacity_exceeded"
        events = stream(box, input=large)
        assert [event["type"] for event in events[-2:]] == ["response.output_item.done", "response.failed"]
        assert events[-1]["response"]["error"]["code"] == "response_store_capacity_exceeded"
        found = [box.request("GET", f"/v1/responses/{one}").status for one in made]
        assert found == [404, 200, 200]  # what could not be kept made no room


def client_of(box: Box) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"http://127.0.0.1:{box.port}/v1", api_key="none", max_retries=0)


def test_the_openai_client(box: Box) -> None:
    with client_of(box) as client:
        first = client.responses.create(
            model="nano", input=scripted({"text": "hello 🌍"}), reasoning={"effort": "none"}
        )
        assert first.output_text == "hello 🌍"
        assert first.usage is not None
        second = client.responses.create(
            model="nano", input=scripted({"text": "again"}), previous_response_id=first.id, reasoning={"effort": "none"}
        )
        assert second.output_text == "again"
        assert client.responses.retrieve(second.id) == second
        listed = client.responses.input_items.list(second.id, order="asc", limit=1)
        assert [item.type for item in listed] == ["message"]
        counted = client.responses.input_tokens.count(model="nano", input="hello")
        assert counted.input_tokens > 0
        client.responses.delete(first.id)
        with pytest.raises(openai.NotFoundError) as gone:
            client.responses.retrieve(first.id)
        assert gone.value.code == "response_not_found"
        with pytest.raises(openai.BadRequestError) as bad:
            client.responses.create(model="nano", input="x", truncation="auto")
        assert bad.value.code == "truncation_not_supported"
        with pytest.raises(openai.BadRequestError):
            client.responses.cancel(second.id)


def test_the_openai_client_streams_tools(box: Box) -> None:
    tool: Any = HERE | {"strict": False}
    text = scripted({"text": "hm</think>\n\nLet me.\n\n" + call("look", zip="02134")})
    with client_of(box) as client:
        with client.responses.stream(model="nano", input=text, tools=[tool]) as streamed:
            kinds = {event.type for event in streamed}
            final = streamed.get_final_response()
        assert "response.output_text.delta" in kinds
        assert final.output_text == "Let me."
        thought, message, made = final.output
        assert made.type == "function_call"
        assert json.loads(made.arguments) == {"zip": "02134"}
        # The usual loop of the client: send its own objects back.
        history: Any = [{"role": "user", "content": text}, thought, message, made, {
            "type": "function_call_output", "call_id": made.call_id, "output": scripted({"text": "done"}),
        }]  # fmt: skip
        last = client.responses.create(model="nano", input=history, tools=[tool], reasoning={"effort": "none"})
        assert last.output_text == "done"
        failing = scripted({"text": "x", "error": "boom"})
        with client.responses.create(model="nano", input=failing, stream=True) as broken:
            *_, terminal = broken
        assert terminal.type == "response.failed"
        assert terminal.response.error is not None
