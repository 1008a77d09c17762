"""Whatever an answer is made of, its events form one valid stream (spec/serving.md §8.3)."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.api.errors import internal
from engine.api.generation import Account, Event, TextDelta
from engine.api.responses.answer import Answer
from engine.api.responses.schemas import CreateRequest
from engine.api.responses.tools import declare
from engine.protocol import Finish, Sampling
from engine.text.tool_events import CallArguments, CallEnd, CallStart
from tests.api.responses import checked

REQUEST = CreateRequest.model_validate({
    "model": "m", "input": "q", "include": ["reasoning.encrypted_content"], "tools": [
        {"type": "function", "name": "f"}, {"type": "custom", "name": "c"},
        {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f"}]},
    ],
})  # fmt: skip

texts = st.lists(st.text(min_size=1, max_size=5), max_size=4)
calls = st.lists(st.tuples(st.sampled_from(["f", "c", "n__f", "stray"]), texts), max_size=3)


def events_of(reasoning: list[str], content: list[str], made: list[tuple[str, list[str]]], *, cut: bool) -> list[Event]:
    events: list[Event] = [TextDelta(reasoning=True, text=text) for text in reasoning]
    events += [TextDelta(reasoning=False, text=text) for text in content]
    for index, (name, pieces) in enumerate(made):
        events.append(CallStart(index, name, "custom" if name == "c" else "function"))
        events += [CallArguments(index, piece) for piece in pieces]
        if not (cut and index == len(made) - 1):
            events.append(CallEnd(index))
    return events


@given(texts, texts, calls, st.sampled_from(["stop_id", "stop_string", "length", "context"]), st.booleans())
@settings(max_examples=120, deadline=None)
def test_every_answer_is_a_valid_stream(
    reasoning: list[str], content: list[str], made: list[tuple[str, list[str]]], finish: Finish, fails: bool
) -> None:
    kept: list[dict[str, Any]] = []
    account = Account(arrived=0.0)
    declared = declare(REQUEST.tools or (), REQUEST.choice, parallel=True)
    answer = Answer("resp_1", REQUEST, declared, sampling=Sampling(), account=account, keep=kept.append)
    cut = finish in ("length", "context")
    events = answer.begin()
    for event in events_of(reasoning, content, made, cut=cut):
        events += answer.take(event)
    if fails:
        events.append(answer.fail(internal()))
    else:
        account.finish = finish
        events += answer.close()
        events.append(answer.end())
    checked(events)
    last = events[-1]["response"]
    if fails:
        assert (last["status"], last["error"]["code"], kept) == ("failed", "internal_error", [])
        return
    assert kept == [last]
    assert last["status"] == ("incomplete" if cut else "completed")
    assert last["incomplete_details"] == ({"reason": "max_output_tokens"} if cut else None)
    said = {"reasoning": "".join(reasoning), "message": "".join(content)}
    for kind, text in said.items():
        found = ["".join(part["text"] for part in item["content"]) for item in last["output"] if item["type"] == kind]
        empty = kind == "message" and not last["output"][1:] and not cut
        assert found == ([text] if text else [""] if empty and not reasoning and not made else [])
    names = [(item.get("namespace"), item["name"]) for item in last["output"] if "name" in item]
    assert names == [("n", "f") if name == "n__f" else (None, name) for name, _ in made]
    states = [item["status"] for item in last["output"]]
    assert all(state == "completed" for state in states[:-1])
    if not cut:
        assert all(state == "completed" for state in states)
