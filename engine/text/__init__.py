"""Messages to tokens and tokens to text: tokenizer, chat template, reasoning channel, stop strings, calls. No torch."""

from engine.text.errors import PromptError
from engine.text.frontend import Frontend, Prompt
from engine.text.reasoning import Channel
from engine.text.stream import Delta, Output
from engine.text.tool_calls import Call, Parsed, ToolParser
from engine.text.tool_events import CallArguments, CallEnd, CallStart, Event
from engine.text.tool_history import tool_history
from engine.text.tool_stream import Commit, ToolCallStream, parse_answer
from engine.text.tools import Tool, ToolChoice, check_tools, custom_tool

__all__ = [
    "Call",
    "CallArguments",
    "CallEnd",
    "CallStart",
    "Channel",
    "Commit",
    "Delta",
    "Event",
    "Frontend",
    "Output",
    "Parsed",
    "Prompt",
    "PromptError",
    "Tool",
    "ToolCallStream",
    "ToolChoice",
    "ToolParser",
    "check_tools",
    "custom_tool",
    "parse_answer",
    "tool_history",
]
