"""Thinking, effort and free variables of a request (spec/serving.md §6.3, spec/cases.md X2)."""

from typing import Any

import pytest

from engine.options import EFFORTS
from engine.text import Frontend, PromptError
from engine.text.template_options import RUNGS, resolve_options


def test_rungs() -> None:
    assert set(RUNGS) == {*EFFORTS, "none"}
    rungs = {effort: resolve_options(reasoning_effort=effort).values() for effort in EFFORTS}
    assert rungs == {
        effort: {"enable_thinking": True, "reasoning_effort": rung}
        for effort, rung in zip(EFFORTS, ("low", "low", "medium", "xhigh", "xhigh", "xhigh"), strict=True)
    }
    assert resolve_options(reasoning_effort="none").values() == {"enable_thinking": False}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {}),
        ({"enable_thinking": True}, {"enable_thinking": True}),
        ({"template_kwargs": {"enable_thinking": False}}, {"enable_thinking": False}),
        ({"template_kwargs": {"enable_thinking": None, "mood": "good"}}, {"mood": "good"}),
        ({"enable_thinking": True, "template_kwargs": {"enable_thinking": True}}, {"enable_thinking": True}),
        ({"default_thinking": False}, {"enable_thinking": False}),
        ({"default_thinking": False, "enable_thinking": True}, {"enable_thinking": True}),
        (
            {"default_thinking": False, "reasoning_effort": "max"},
            {"enable_thinking": True, "reasoning_effort": "xhigh"},
        ),
        ({"default_thinking": False, "default_effort": "low"}, {"enable_thinking": False}),
        ({"default_effort": "high"}, {"reasoning_effort": "xhigh"}),
        ({"enable_thinking": False, "default_effort": "low"}, {"enable_thinking": False}),
        ({"enable_thinking": False, "reasoning_effort": "none"}, {"enable_thinking": False}),
        ({"preserve_thinking": False, "default_preserve_thinking": True}, {"preserve_thinking": False}),
        ({"default_preserve_thinking": True}, {"preserve_thinking": True}),
    ],
)
def test_combinations(options: dict[str, Any], expected: dict[str, Any]) -> None:
    assert resolve_options(**options).values() == expected


@pytest.mark.parametrize(
    "options",
    [
        {"enable_thinking": True, "template_kwargs": {"enable_thinking": False}},
        {"reasoning_effort": "low", "template_kwargs": {"reasoning_effort": "minimal"}},
        {"preserve_thinking": True, "template_kwargs": {"preserve_thinking": False}},
        {"enable_thinking": True, "reasoning_effort": "none"},
        {"enable_thinking": False, "reasoning_effort": "low"},
        {"enable_thinking": False, "template_kwargs": {"reasoning_effort": "low"}},
    ],
)
def test_conflicts(options: dict[str, Any]) -> None:
    with pytest.raises(PromptError) as raised:
        resolve_options(**options)
    assert raised.value.code == "conflicting_template_option"
    assert raised.value.param in options | options.get("template_kwargs", {})


@pytest.mark.parametrize(
    ("kwargs", "param"),
    [
        ({"enable_thinking": "yes"}, "chat_template_kwargs.enable_thinking"),
        ({"enable_thinking": 1}, "chat_template_kwargs.enable_thinking"),
        ({"preserve_thinking": []}, "chat_template_kwargs.preserve_thinking"),
        ({"reasoning_effort": "huge"}, "chat_template_kwargs.reasoning_effort"),
        ({"reasoning_effort": ["low"]}, "chat_template_kwargs.reasoning_effort"),
        *(
            ({name: True}, f"chat_template_kwargs.{name}")
            for name in (
                "messages", "tools", "tokenize", "add_generation_prompt", "continue_final_message", "chat_template",
                "bos_token", "eos_token", "image_token", "additional_special_tokens", "raise_exception", "namespace",
                "range", "loop", "self",
            )
        ),
        *(
            ({name: True}, "chat_template_kwargs")
            for name in ("__class__", "_private", "", "a b", "a.b", "1a", "é", "x" * 65, "<think>")
        ),
    ],
)  # fmt: skip
def test_refused_names_and_types(frontend: Frontend, kwargs: dict[str, Any], param: str) -> None:
    with pytest.raises(PromptError) as raised:
        frontend.prepare([{"role": "user", "content": "hi"}], template_kwargs=kwargs)
    assert (raised.value.code, raised.value.param) == ("invalid_template_option", param)


def test_wrong_effort_at_the_top_level() -> None:
    with pytest.raises(PromptError, match="one of none, minimal, low") as raised:
        resolve_options(reasoning_effort="extreme")
    assert (raised.value.code, raised.value.param) == ("invalid_template_option", "reasoning_effort")
