"""The template engine, and what the embedded model's template does (spec/model.md §14)."""

import json
from datetime import datetime
from typing import Any

import pytest

from engine.exits import ArtifactError, ConfigurationError
from engine.text import Frontend, PromptError
from engine.text.template import ChatTemplate, Limits
from tests.text.conftest import Resources, text_of

USER = {"role": "user", "content": " hi "}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "b": 1, "a": 2}}}


def _prompt(frontend: Frontend, *messages: dict[str, Any], **options: Any) -> str:
    return text_of(frontend, frontend.prepare(list(messages), **options).token_ids)


# The engine


def test_blocks_are_trimmed_and_loops_controlled() -> None:
    template = ChatTemplate("{% for i in items %}\n  {% if i == 3 %}{% break %}{% endif %}\n{{ i }}\n{% endfor %}\nend")
    assert template.render({"items": [1, 2, 3, 4]}) == "1\n2\nend"


def test_json_keeps_order_and_escapes_nothing_needlessly() -> None:
    value = {"b": [1, 2.0, None, True], "a": "é<>&'\"🌍", "n": {}}
    text = ChatTemplate("{{ value | tojson }}").render({"value": value})
    assert text == '{"b": [1, 2.0, null, true], "a": "é<>&\'\\"🌍", "n": {}}'
    assert ChatTemplate("{{ value | tojson(indent=2) }}").render({"value": value}) == json.dumps(
        value, ensure_ascii=False, indent=2
    )


def test_time_is_injected() -> None:
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", now=lambda: datetime(2026, 2, 3))
    assert template.render({}) == "03 Feb 2026"


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{% set x = messages.pop() %}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{% include 'other' %}",
        "{{ missing.field }}",
        "{{ 1 / 0 }}",
        "{{ 'a' + 1 }}",
        "{{ range(10 ** 9) | length }}",
    ],
)
def test_a_template_that_reaches_out_or_fails_is_a_named_error(source: str) -> None:
    with pytest.raises(PromptError, match="template") as raised:
        ChatTemplate(source).render({"messages": [1]})
    assert raised.value.code == "invalid_prompt"


def test_the_sandbox_shows_nothing_of_an_unsafe_attribute() -> None:
    assert ChatTemplate("[{{ messages.__class__ }}{{ raise_exception.__globals__ }}]").render({"messages": [1]}) == "[]"


def test_a_looping_template_is_stopped() -> None:
    loop = "{% for i in range(90000) %}{% for j in range(90000) %}{% set x = i.real %}{% endfor %}{% endfor %}"
    clock = iter(range(10**9))
    template = ChatTemplate(loop, limits=Limits(seconds=5000), monotonic=lambda: float(next(clock)))
    with pytest.raises(PromptError, match="longer than 5000 seconds"):
        template.render({})


def test_an_endless_writer_is_stopped() -> None:
    template = ChatTemplate("{% for i in range(90000) %}{{ text }}{% endfor %}", limits=Limits(characters=10_000))
    with pytest.raises(PromptError, match="longer than 10000 characters"):
        template.render({"text": "x" * 100})


@pytest.mark.parametrize("source", ["{% if %}", "{{ x", "{% nonsense %}", "a\n{% for x in y %}"])
def test_a_broken_template_names_itself_and_the_line(source: str) -> None:
    with pytest.raises(ArtifactError, match=r"chat_template\.jinja line \d"):
        ChatTemplate(source)


def test_replacement_template() -> None:
    frontend = Frontend.load(Resources(), template="{{ messages[0].content }}{{ eos_token }}")
    assert _prompt(frontend, USER) == " hi <|im_end|>"
    assert not frontend.thinks
    with pytest.raises(PromptError, match="cannot continue"):
        frontend.prepare([USER, {"role": "assistant", "content": "a"}], continue_final_message=True)
    with pytest.raises(ConfigurationError, match="--chat-template"):
        Frontend.load(Resources(), template="{% if %}")


# The embedded model's template

HEAD = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_plain_question(frontend: Frontend) -> None:
    assert frontend.thinks
    assert _prompt(frontend, USER, reasoning_effort="medium") == HEAD + "<think>\n"


def test_thinking_off(frontend: Frontend) -> None:
    off: tuple[dict[str, Any], ...] = (
        {"enable_thinking": False},
        {"reasoning_effort": "none"},
        {"default_thinking": False},
    )
    for options in off:
        prompt = frontend.prepare([USER], **options)
        assert text_of(frontend, prompt.token_ids) == HEAD + "<think>\n\n</think>\n\n"
        assert not prompt.thinking
    assert frontend.prepare([USER]).thinking
    assert not frontend.prepare([USER], add_generation_prompt=False).thinking


def test_efforts(frontend: Frontend) -> None:
    def instruction(**options: Any) -> str:
        text = _prompt(frontend, USER, **options)
        assert text.endswith(HEAD + "<think>\n")
        return text.removesuffix(HEAD + "<think>\n").removeprefix("<|im_start|>system\n").removesuffix("<|im_end|>\n")

    low, high = instruction(reasoning_effort="low"), instruction(reasoning_effort="xhigh")
    assert low.startswith("Reasoning effort: low.")
    assert high.startswith("Reasoning effort: very high.")
    assert instruction(reasoning_effort="medium") == ""
    assert instruction(reasoning_effort="minimal") == low
    assert instruction(reasoning_effort="high") == instruction(reasoning_effort="max") == instruction() == high
    assert instruction(default_effort="low") == low
    assert instruction(default_effort="low", reasoning_effort="medium") == ""
    assert instruction(default_thinking=False, reasoning_effort="low") == low


def test_unknown_effort_is_refused_by_the_template(frontend: Frontend) -> None:
    template = ChatTemplate(Resources().resource("text", "chat_template.jinja").decode())
    with pytest.raises(PromptError, match="not huge"):
        template.render({"messages": [USER], "reasoning_effort": "huge"})


def test_system_turn(frontend: Frontend) -> None:
    system = {"role": "developer", "content": [{"type": "text", "text": " be "}, {"type": "text", "text": "brief "}]}
    assert _prompt(frontend, system, USER, reasoning_effort="medium").startswith(
        "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user"
    )
    assert "\n\nbe brief<|im_end|>\n" in _prompt(frontend, system, USER, reasoning_effort="low")
    assert _prompt(frontend, {"role": "system", "content": " "}, USER, reasoning_effort="medium") == HEAD + "<think>\n"


def test_system_turns_stay_in_place(frontend: Frontend) -> None:
    later = {"role": "system", "content": " now "}
    assistant = {"role": "assistant", "content": "a"}
    text = _prompt(frontend, USER, assistant, later, USER, enable_thinking=False, preserve_thinking=False)
    assert text.startswith(
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n"
        "<|im_start|>system\nnow<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
    )


def test_tools_head(frontend: Frontend) -> None:
    system = {"role": "system", "content": "be brief"}
    text = _prompt(frontend, system, USER, tools=[TOOL, TOOL], reasoning_effort="low")
    assert text.startswith("<|im_start|>system\nReasoning effort: low.")
    listed = '{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "b": 1, "a": 2}}}'
    assert f"\n\n# Tools\n\nThese functions can be called:\n\n<tools>\n{listed}\n{listed}\n</tools>\n\n" in text
    assert text.count("<|im_start|>system") == 1
    assert "\n\nbe brief<|im_end|>\n<|im_start|>user\nhi" in text
    assert "# Tools" not in _prompt(frontend, USER, tools=[])


def _call(name: str, arguments: Any) -> dict[str, Any]:
    return {"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}}


def test_tool_calls_and_grouped_results(frontend: Frontend) -> None:
    calls = [_call("look", '{"text": "a\\nb", "n": 2, "flag": true, "deep": {"k": [1]}}'), _call("stop", "")]
    history: list[dict[str, Any]] = [
        USER,
        {"role": "assistant", "content": "I look.", "tool_calls": calls, "reasoning_content": " why "},
        {"role": "tool", "content": " one "},
        {"role": "tool", "content": [{"type": "text", "text": "two"}]},
    ]
    text = _prompt(frontend, *history, enable_thinking=False)
    assert text == (
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\nwhy\n</think>\n\nI look.\n\n"
        "<tool_call>\n<function=look>\n<parameter=text>\na\nb\n</parameter>\n<parameter=n>\n2\n</parameter>\n"
        '<parameter=flag>\ntrue\n</parameter>\n<parameter=deep>\n{"k": [1]}\n</parameter>\n</function>\n</tool_call>\n'
        "<tool_call>\n<function=stop>\n</function>\n</tool_call><|im_end|>\n"
        "<|im_start|>user\n<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
    silent = _prompt(frontend, USER, {"role": "assistant", "content": None, "tool_calls": calls[1:]})
    assert "</think>\n\n<tool_call>" in silent


def test_results_without_a_question(frontend: Frontend) -> None:
    text = _prompt(frontend, {"role": "tool", "content": "r"}, enable_thinking=False)
    assert text.startswith("<|im_start|>user\n<tool_response>\nr\n</tool_response><|im_end|>\n")


def test_arguments_may_be_a_mapping(frontend: Frontend) -> None:
    def render(arguments: Any) -> str:
        return _prompt(frontend, USER, {"role": "assistant", "content": "", "tool_calls": [_call("f", arguments)]})

    assert render({"a": "x"}) == render('{"a": "x"}')


@pytest.mark.parametrize(
    ("calls", "where"),
    [
        ([_call("f", "{")], "messages[1].tool_calls[0].function.arguments"),
        ([_call("f", "[1]")], "messages[1].tool_calls[0].function.arguments"),
        ([_call("f", "{}"), "x"], "messages[1].tool_calls[1]"),
    ],
)
def test_bad_arguments_are_named(frontend: Frontend, calls: list[Any], where: str) -> None:
    with pytest.raises(PromptError) as raised:
        frontend.prepare([USER, {"role": "assistant", "content": "", "tool_calls": calls}])
    assert (raised.value.code, raised.value.param) == ("invalid_tool_history", where)


def test_preserved_thinking(frontend: Frontend) -> None:
    history = [USER, {"role": "assistant", "content": " a ", "reasoning_content": "old"}, USER]
    kept = "assistant\n<think>\nold\n</think>\n\n a <|im_end|>"
    assert kept in _prompt(frontend, *history)
    assert kept in _prompt(frontend, *history, preserve_thinking=True, default_preserve_thinking=False)
    assert "assistant\n a <|im_end|>" in _prompt(frontend, *history, preserve_thinking=False)
    # After the last question reasoning stays, even when it is empty.
    after = _prompt(frontend, USER, {"role": "assistant", "content": "a"}, preserve_thinking=False)
    assert "assistant\n<think>\n\n</think>\n\na<|im_end|>" in after


def test_continued_message(frontend: Frontend) -> None:
    partial = {"role": "assistant", "content": "The answer is "}
    prompt = frontend.prepare([USER, partial], continue_final_message=True, default_effort="low")
    assert text_of(frontend, prompt.token_ids).endswith("<|im_start|>assistant\nThe answer is ")
    assert "effort: low" not in text_of(frontend, prompt.token_ids)
    assert not prompt.thinking
    with pytest.raises(PromptError, match="only an assistant message"):
        frontend.prepare([USER], continue_final_message=True)


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "no message"),
        ([{"role": "system", "content": "x"}], "no user message"),
        ([{"role": "robot", "content": "x"}, USER], "unknown role: robot"),
        ([{"role": "user", "content": [{"type": "audio"}]}], "unknown kind of content part: audio"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "text only"),
        ([{"role": "system", "content": [{"type": "image"}]}, USER], "system message cannot hold images"),
        ([{"role": "user", "content": {"text": "x"}}], "text or a list of parts"),
        ([{"role": "r<think>", "content": "x"}, USER], "unknown role: r<think>"),
    ],
)
def test_refused_conversations(frontend: Frontend, messages: list[dict[str, Any]], reason: str) -> None:
    with pytest.raises(PromptError, match=reason) as raised:
        frontend.prepare(messages)
    assert raised.value.code == "invalid_prompt"


def test_deep_nesting_is_refused(frontend: Frontend) -> None:
    deep: Any = "x"
    for _ in range(50_000):
        deep = [deep]
    with pytest.raises(PromptError, match="nested too deeply"):
        frontend.prepare([USER], tools=[{"function": deep}])


def test_what_is_not_json_is_refused(frontend: Frontend) -> None:
    with pytest.raises(TypeError, match="object is not JSON"):
        frontend.prepare([{"role": "user", "content": object()}])
