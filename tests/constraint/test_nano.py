"""The engine process with the embedded model, and the one-shot command: random weights, and every answer fits."""

import json
import re
from pathlib import Path

import jsonschema_rs
import pytest

from engine.artifact import Artifact
from engine.cli.generate import main
from engine.constraint.constraint import json_schema, matching, one_of
from engine.constraint.tools import tool_grammar
from engine.protocol import Submit, Thinking, pack_ids
from engine.text import Frontend
from engine.text.tool_calls import ToolParser
from engine.text.tools import Tool, ToolChoice
from tests.core.client import Client
from tests.core.harness import Answer, submit
from tests.core.test_process import NANO, START_SECONDS, engine

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 12},
        "kind": {"enum": ["one", "two"]},
        "points": {"type": "array", "items": {"type": "integer", "minimum": -9, "maximum": 99}, "maxItems": 3},
    },
    "required": ["name", "kind", "points"],
    "additionalProperties": False,
}
TOOL = Tool(name="paint", strict=True, parameters={
    "type": "object", "properties": {"colour": {"type": "string", "maxLength": 9}, "size": {"type": "integer"}},
    "required": ["colour", "size"], "additionalProperties": False,
})  # fmt: skip


def test_the_engine_keeps_to_constraints(tmp_path: Path) -> None:
    with Artifact.open(NANO) as artifact:
        frontend = Frontend.load(artifact)
    config = {
        "artifact": str(NANO), "max_context": 512, "kv_capacity": 2048, "lanes": 4, "prefill_chunk": 128,
        "log_level": "warning",
    }  # fmt: skip

    def ask(number: int, source: bytes, max_tokens: int = 200, **fields: object) -> Submit:
        prompt = frontend.encode("Give me the number. ")
        settings = {"temperature": 1.0 if number % 2 else 0.0, "seed": number, "stop_ids": frontend.stop_ids} | fields
        return submit(prompt, max_tokens, id=number, constraint=source, **settings)

    def text(answer: Answer) -> str:
        assert answer.finish == "stop_id", answer.last
        assert answer.last.constraint is not None
        assert answer.last.constraint.complete
        return b"".join(frontend.vocabulary[token] for token in answer.tokens[:-1]).decode()

    thinking = Thinking(close=b"</think>", budget=9, wrap_up=pack_ids(frontend.wrap_up()))
    schema = json_schema(SCHEMA)
    with engine(tmp_path, "engine.core", **config) as (process, path), Client(path, START_SECONDS) as client:
        client.ready()
        for number in range(4):
            client.send(ask(number, schema.source(after_thought=False)))
        client.send(ask(4, matching(r"[0-9]{2}:[0-9]{2}").source(after_thought=False)))
        client.send(ask(5, one_of(["red", "green", "blue"]).source(after_thought=False)))
        client.send(ask(6, schema.source(after_thought=True), thinking=thinking))
        client.send(ask(7, tool_grammar([TOOL], ToolChoice.required()).source(after_thought=False), 300))
        client.send(submit([1, 2, 3], 30, id=8))
        for number in range(4):
            jsonschema_rs.validate(SCHEMA, json.loads(text(client.answer(number))))
        assert re.fullmatch(r"\d\d:\d\d", text(client.answer(4)))
        assert text(client.answer(5)) in ("red", "green", "blue")
        thought, _, answer = text(client.answer(6)).partition("</think>")
        assert thought.endswith("directly now.\n")
        jsonschema_rs.validate(SCHEMA, json.loads(answer))
        called = client.answer(7)
        if called.finish == "stop_id":
            result = ToolParser([TOOL], ToolChoice.required()).parse(text(called))
            assert result.calls
            assert (result.text, result.fallback) == ("", "none")
        assert len(client.answer(8).tokens) == 30
        process.terminate()
        client.read_to_the_end()
        assert process.wait(20) == 0


def test_the_command(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "schema.json"
    file.write_text(json.dumps(SCHEMA))
    flags = [str(NANO), "--prompt", "hi", "--max-context", "512", "--max-new", "200", "--seed", "1"]
    assert main([*flags, "--json-schema-file", str(file), "--thinking-budget", "5"]) == 0
    jsonschema_rs.validate(SCHEMA, json.loads(capfd.readouterr().out))
