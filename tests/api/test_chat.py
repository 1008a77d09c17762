"""Chat Completions against the scripted engine: whole and streamed (spec/serving.md §6, §7)."""

import json
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.api.box import Box, chat_body
from tests.api.nano import frontend

HEAD = {"id", "object", "created", "model", "choices"}
THINK = {"enable_thinking": True}


def joined(events: list[Any], name: str) -> str:
    return "".join(one["choices"][0]["delta"].get(name, "") for one in events[:-1] if one["choices"])


@pytest.mark.parametrize(
    ("script", "fields"),
    [
        ({"text": "plain words"}, {}),
        ({"text": "你好 🌍 é", "each": 1}, {}),
        ({"text": "你好 🌍 é", "each": 3}, {}),
        ({"ids": frontend().encode("a 🌍")[:-1], "finish": "length"}, {}),
        ({"text": "a thought</think>\n\nan answer"}, THINK),
        ({"text": "a thought that is cut", "finish": "length"}, THINK),
        ({"text": "a thought then the model stops"}, THINK),
        ({"text": "an answer with </think> in it"}, {}),
        ({"text": "one two STOP three"}, {"stop": "STOP"}),
        ({"text": "one two ST"}, {"stop": ["STOP", "zzz"]}),
        ({"text": "a thought STOP</think>answer"}, {"stop": "STOP"} | THINK),
        ({"text": "one two three four five"}, {"max_tokens": 3}),
        ({"text": "x"}, {"max_tokens": 0}),
        ({"text": "", "ids": []}, {}),
    ],
)
def test_stream_and_whole_say_the_same(box: Box, script: dict[str, Any], fields: dict[str, Any]) -> None:
    whole = box.chat(script, **fields).json
    message, choice = whole["choices"][0]["message"], whole["choices"][0]
    reply = box.chat(script, stream=True, stream_options={"include_usage": True}, **fields)
    assert reply.headers["Content-Type"] == "text/event-stream"
    assert (reply.headers["Cache-Control"], reply.headers["X-Accel-Buffering"]) == ("no-cache", "no")
    events = reply.events
    assert events[-1] == "[DONE]"
    assert joined(events, "content") == message["content"]
    assert joined(events, "reasoning_content") == message.get("reasoning_content", "")
    last, totals = events[-3:-1]
    assert last["choices"][0]["finish_reason"] == choice["finish_reason"]
    assert (totals["choices"], totals["usage"]) == ([], whole["usage"])
    channels = ["reasoning_content" in one["choices"][0]["delta"] for one in events[1:-3]]
    assert channels == sorted(channels, reverse=True)  # never reasoning after content
    assert "�" not in (message["content"] if "ids" not in script else "")


def test_the_whole_answer(box: Box) -> None:
    whole = box.chat({"text": "hm</think>\n\nyes"}, **THINK).json
    assert set(whole) == HEAD | {"usage", "timings"}
    assert whole["id"].startswith("chatcmpl-")
    assert len(whole["id"]) == len("chatcmpl-") + 16
    assert whole["object"] == "chat.completion"
    assert whole["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "yes", "refusal": None, "reasoning_content": "hm"},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    usage, timings = whole["usage"], whole["timings"]
    generated = len(frontend().encode("hm")) + 1 + len(frontend().encode("\n\nyes")) + 1  # with </think> and the stop
    assert usage["completion_tokens"] == timings["predicted_n"] >= generated - 2
    assert 0 < usage["completion_tokens_details"]["reasoning_tokens"] < usage["completion_tokens"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0}
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert (timings["cache_n"], timings["prompt_n"]) == (0, usage["prompt_tokens"])
    assert (timings["prompt_ms"], timings["predicted_ms"]) == (2.0, 3.0)
    assert timings["predicted_per_second"] == pytest.approx((timings["predicted_n"] - 1) / 0.003, abs=1e-3)
    assert timings["prompt_per_token_ms"] == pytest.approx(2.0 / timings["prompt_n"], abs=1e-3)


def test_no_thought_means_text_content_and_no_reasoning(box: Box) -> None:
    message = box.chat({"text": "", "ids": []}).json["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "", "refusal": None}


def test_a_cut_thought_is_reasoning(box: Box) -> None:
    choice = box.chat({"text": "word " * 40}, max_tokens=20, **THINK).json["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"] == ""
    assert choice["message"]["reasoning_content"].startswith("word word")


def test_order_of_a_plain_stream(box: Box) -> None:
    events = box.chat({"text": "a b"}, stream=True).events
    assert events[-1] == "[DONE]"
    chunks = events[:-1]
    assert {(one["id"], one["created"], one["model"], one["object"]) for one in chunks} == {
        (chunks[0]["id"], chunks[0]["created"], "nano", "chat.completion.chunk")
    }
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all(set(one) == HEAD for one in chunks[:-1])
    assert set(chunks[-1]) == HEAD | {"timings"}
    assert [one["choices"][0]["finish_reason"] for one in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert all(one["choices"][0]["logprobs"] is None for one in chunks)


def test_usage_progress_and_timings_in_a_stream(box: Box) -> None:
    events = box.chat(
        {"text": "a b", "prefill": 0.03}, stream=True, stream_options={"include_usage": True}, return_progress=True,
        timings_per_token=True,
    ).events  # fmt: skip
    *chunks, totals, done = events
    assert done == "[DONE]"
    assert all(one["usage"] is None for one in chunks)
    assert "timings" in totals
    assert "timings" not in chunks[-1]
    progress = [one["prompt_progress"] for one in chunks if "prompt_progress" in one]
    total = totals["usage"]["prompt_tokens"]
    assert [one["processed"] for one in progress] == [0, total // 3, 2 * total // 3, total]
    assert all((one["total"], one["cache"]) == (total, 0) for one in progress)
    assert [one["time_ms"] for one in progress] == sorted(one["time_ms"] for one in progress)
    counts = [one["timings"]["predicted_n"] for one in chunks if "timings" in one]
    assert counts == sorted(counts)
    assert counts[-1] >= 2


def test_what_reaches_the_engine(box: Box) -> None:
    seen = len(box.seen("submit"))
    box.chat({"text": "x"}, temperature=0.5, top_k=3, seed=-1, stop=["a", "é"], max_tokens=9, max_completion_tokens=7)
    box.chat({"text": "x"}, ignore_eos=True, presence_penalty=-1)
    box.chat({"text": "x"}, **THINK)
    first, second, third = box.seen("submit")[seen:]
    assert (first["temperature"], first["top_k"], first["seed"]) == (0.5, 3, 2**64 - 1)
    assert (first["top_p"], first["presence_penalty"]) == (0.8, 1.5)  # not thinking
    assert (first["stops"], first["max_tokens"]) == (["a", "é"], 7)
    assert first["stop_ids"] == list(frontend().stop_ids)
    assert 590 < first["deadline"] <= 600
    assert second["stop_ids"] == []
    assert second["max_tokens"] == 2048 - second["prompt"]  # the rest of the context
    assert second["presence_penalty"] == -1
    assert (third["temperature"], third["top_p"], third["presence_penalty"]) == (1.0, 0.95, 0)


def test_a_large_limit_is_bounded_and_no_error(box: Box) -> None:
    reply = box.chat({"text": "x"}, max_tokens=2**31 - 1)
    assert reply.status == 200
    submit = box.seen("submit")[-1]
    assert submit["max_tokens"] == 2048 - submit["prompt"]


def test_context_is_enforced(box: Box) -> None:
    reply = box.chat(messages=[{"role": "user", "content": "word " * 3000}])
    assert (reply.status, reply.error["code"]) == (400, "context_length_exceeded")
    assert "2048" in reply.error["message"]
    streamed = box.chat(messages=[{"role": "user", "content": "word " * 3000}], stream=True)
    assert streamed.status == 400  # before the headers of a stream


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"enable_thinking": True, "reasoning_effort": "none"}, "conflicting_template_option", "reasoning_effort"),
        (
            {"enable_thinking": True, "chat_template_kwargs": {"enable_thinking": False}},
            "conflicting_template_option",
            "enable_thinking",
        ),
        (
            {"chat_template_kwargs": {"enable_thinking": "no"}, "enable_thinking": None},
            "invalid_template_option",
            "chat_template_kwargs.enable_thinking",
        ),
        ({"chat_template_kwargs": {"tokenize": True}}, "invalid_template_option", "chat_template_kwargs.tokenize"),
        ({"chat_template_kwargs": {"messages": []}}, "invalid_template_option", "chat_template_kwargs.messages"),
        ({"chat_template_kwargs": {"__class__": 1}}, "invalid_template_option", "chat_template_kwargs"),
    ],
)
def test_template_options(box: Box, fields: dict[str, Any], code: str, param: str) -> None:
    reply = box.chat(**fields)
    assert (reply.status, reply.error["code"], reply.error["param"]) == (400, code, param)


def test_effort_none_turns_thinking_off(box: Box) -> None:
    off = box.chat({"text": "x"}, enable_thinking=None, reasoning_effort="none").json["choices"][0]["message"]
    assert off["content"] == "x"
    on = box.chat({"text": "x"}, enable_thinking=None, reasoning_effort="low").json["choices"][0]["message"]
    assert (on["content"], on["reasoning_content"]) == ("", "x")


def test_tool_history_is_rendered(box: Box) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"where": "here"}'}}
    history: list[dict[str, Any]] = [
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": json.dumps({"script": {"text": "seen"}})},
    ]
    reply = box.chat(messages=history)
    assert reply.json["choices"][0]["message"]["content"] == "seen"


@pytest.mark.parametrize(
    ("code", "status", "answer"),
    [
        ("overloaded", 429, "server_overloaded"),
        ("queue_timeout", 503, "request_queue_timeout"),
        ("context_length", 400, "context_length_exceeded"),
        ("unavailable", 503, "service_unavailable"),
        ("invalid", 400, "invalid_prompt"),
        ("not_supported", 400, "parameter_not_supported"),
    ],
)
def test_what_the_engine_refuses(box: Box, code: str, status: int, answer: str) -> None:
    whole = box.chat({"reject": code})
    assert (whole.status, whole.error["code"]) == (status, answer)
    assert (whole.headers["Retry-After"] is not None) == (status in (429, 503))
    role, error = box.chat({"reject": code}, stream=True).events  # and no [DONE]
    assert role["choices"][0]["delta"]["role"] == "assistant"
    assert error["error"]["code"] == answer


def test_an_engine_error_says_nothing_about_its_inside(box: Box) -> None:
    whole = box.chat({"text": "a", "error": "KeyError: secret"})
    assert (whole.status, whole.error["type"], whole.error["code"]) == (500, "internal_error", None)
    streamed = box.chat({"text": "a", "error": "KeyError: secret"}, stream=True)
    assert streamed.events[-1]["error"] == whole.error
    assert b"secret" not in whole.body.replace(b"scripted", b"") + streamed.body.split(b"error", 1)[1]
    assert "KeyError: secret" in box.api_log.read_text()


def test_the_openai_client(box: Box) -> None:
    with openai.OpenAI(base_url=f"http://127.0.0.1:{box.port}/v1", api_key="none", max_retries=0) as client:
        assert [model.id for model in client.models.list()] == ["nano"]
        messages: Any = chat_body({"text": "hello 🌍"})["messages"]
        off = {"enable_thinking": False}
        whole = client.chat.completions.create(model="nano", messages=messages, extra_body=off)
        assert whole.choices[0].message.content == "hello 🌍"
        assert whole.usage is not None
        with client.chat.completions.create(
            model="nano", messages=messages, stream=True, stream_options={"include_usage": True}, extra_body=off
        ) as stream:
            chunks = list(stream)
        assert "".join(one.choices[0].delta.content or "" for one in chunks if one.choices) == "hello 🌍"
        assert chunks[-1].usage == whole.usage
        with pytest.raises(openai.NotFoundError) as missing:
            client.chat.completions.create(model="other", messages=messages)
        assert missing.value.code == "model_not_found"
        assert (missing.value.request_id or "").startswith("req_")
        with pytest.raises(openai.BadRequestError) as bad:
            client.chat.completions.create(model="nano", messages=messages, temperature=3)
        assert bad.value.param == "temperature"
        failing: Any = chat_body({"text": "x", "error": "boom"})["messages"]
        with pytest.raises(openai.InternalServerError):
            client.chat.completions.create(model="nano", messages=failing)
        with (
            pytest.raises(openai.APIError),
            client.chat.completions.create(model="nano", messages=failing, stream=True) as broken,
        ):
            list(broken)


def test_a_thinking_budget_reaches_the_engine_with_the_words_that_end_the_thought(box: Box) -> None:
    words = "Considering the limited time by the user, I have to give the solution based on the thinking directly now."
    told = f"\n\n{words}\n"
    box.chat({"text": "x"}, thinking_budget=7, **THINK)
    assert box.seen("submit")[-1]["thinking"] == ["</think>", 7, told + "</think>\n\n"]
    box.chat({"text": "x"}, **THINK)
    assert box.seen("submit")[-1]["thinking"] is None
    box.chat({"text": "x"}, thinking_budget=7)  # it does not think: no error either
    assert box.seen("submit")[-1]["thinking"] is None
    whole = box.chat({"text": f"a b{told}</think>\n\nso"}, thinking_budget=2, **THINK).json
    message = whole["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == (f"a b{told}", "so")


def test_a_default_thinking_budget() -> None:
    from engine.api.chat import ask_of
    from engine.api.config import GenerationDefaults
    from engine.api.generation import prepare
    from engine.api.schemas import ChatRequest
    from engine.protocol import Limits
    from tests.api.nano import load

    model = load(Path(__file__), None)
    limits = Limits(max_context=1000, kv_capacity=1000, lanes=1, max_pending=1, token_count=model.frontend.token_count)

    def budget(**fields: Any) -> int | None:
        ask = ask_of(ChatRequest.model_validate(chat_body(None, **fields)))
        thought = prepare(ask, model, limits, GenerationDefaults(default_thinking_budget=9)).thought
        return None if thought is None else thought.budget

    assert (budget(), budget(**THINK), budget(thinking_budget=4, **THINK)) == (None, 9, 4)
