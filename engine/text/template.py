"""The artifact's chat template, rendered in an immutable sandbox with a bound on output and on time."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.meta
from jinja2.exceptions import SecurityError, TemplateError, TemplateSyntaxError
from jinja2.ext import loopcontrols
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.exits import ArtifactError
from engine.text.errors import PromptError

TEMPLATE = "chat_template.jinja"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds of one rendering.

    `seconds` is checked whenever the template writes, calls, or looks something up, so a template that loops is
    stopped; a single built-in filter runs to its end, which is linear in its input.
    """

    characters: int = 32 * 1024 * 1024
    seconds: float = 10.0


class _RefusedError(TemplateError):
    """The template itself called `raise_exception`."""


class _OutOfTimeError(Exception):
    pass


class _Environment(ImmutableSandboxedEnvironment):
    """Sandbox that runs `tick` at every look-up and call."""

    tick: Callable[[], None]

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        self.tick()
        return super().call(context, obj, *args, **kwargs)

    def getattr(self, obj: Any, attribute: str) -> Any:
        self.tick()
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        self.tick()
        return super().getitem(obj, argument)


class ChatTemplate:
    """One compiled template. Rendering is thread-safe: each call works in an overlay of the environment."""

    def __init__(
        self,
        source: str,
        *,
        limits: Limits | None = None,
        now: Callable[[], datetime] = datetime.now,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Compile `source`.

        Raises:
            ArtifactError: it is empty or has a syntax error; the message names the line.
        """
        if not source.strip():
            raise ArtifactError(f"{TEMPLATE} is empty")
        self._source = source
        self._limits = Limits() if limits is None else limits
        self._now = now
        self._monotonic = monotonic
        environment = self._environment(lambda: None)
        try:
            self.variables = frozenset(jinja2.meta.find_undeclared_variables(environment.parse(source)))
            self._code = environment.compile(source)
        except (TemplateSyntaxError, RecursionError) as error:
            line = f" line {error.lineno}" if isinstance(error, TemplateSyntaxError) else ""
            raise ArtifactError(f"{TEMPLATE}{line}: {error}") from error

    def render(self, values: Mapping[str, Any]) -> str:
        """Text of the template with `values` as its variables.

        Raises:
            PromptError: `invalid_prompt` when the template refuses the input or fails on it, or a limit is passed.
        """
        end = self._monotonic() + self._limits.seconds

        def tick() -> None:
            if self._monotonic() > end:
                raise _OutOfTimeError

        environment = self._environment(tick)
        template = jinja2.Template.from_code(environment, self._code, dict(environment.globals))
        pieces: list[str] = []
        left = self._limits.characters
        try:
            for piece in template.generate(values):
                tick()
                left -= len(piece)
                if left < 0:
                    raise PromptError(
                        "invalid_prompt", f"the rendered prompt is longer than {self._limits.characters} characters"
                    )
                pieces.append(piece)
        except PromptError:
            raise
        except _OutOfTimeError as error:
            raise PromptError(
                "invalid_prompt", f"the chat template ran longer than {self._limits.seconds:g} seconds on this request"
            ) from error
        except _RefusedError as error:
            raise PromptError("invalid_prompt", f"the chat template refuses this request: {error}") from error
        except (RecursionError, MemoryError) as error:
            raise PromptError("invalid_prompt", "the request is nested too deeply for the chat template") from error
        except SecurityError as error:
            raise PromptError("invalid_prompt", f"the chat template may not do this: {error}") from error
        except Exception as error:  # whatever a template expression raises on this input
            raise PromptError("invalid_prompt", f"the chat template failed on this request: {error}") from error
        return "".join(pieces)

    def _environment(self, tick: Callable[[], None]) -> _Environment:
        environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols], cache_size=0)
        environment.tick = tick
        environment.filters["tojson"] = to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda pattern: self._now().strftime(pattern)
        return environment


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as Hugging Face templates expect it: keys in their order, `", "` and `": "`, nothing escaped needlessly."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise _RefusedError(message)
