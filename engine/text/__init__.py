"""Messages to tokens and tokens to text: tokenizer, chat template, reasoning channel, stop strings. No torch."""

from engine.text.errors import PromptError
from engine.text.frontend import Frontend, Prompt
from engine.text.reasoning import Channel
from engine.text.stream import Delta, Output

__all__ = ["Channel", "Delta", "Frontend", "Output", "Prompt", "PromptError"]
