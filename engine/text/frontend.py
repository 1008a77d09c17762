"""Messages to token ids and token ids to text, for one artifact. The API's only door to tokenizer and template."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from engine.artifact.vocabulary import TOKENIZER, TOKENIZER_CONFIG, AddedToken, json_object
from engine.exits import ArtifactError, ConfigurationError
from engine.text.errors import PromptError
from engine.text.guard import Guard
from engine.text.reasoning import AFTER_THOUGHT, THINK_CLOSE, THINK_OPEN, WRAP_UP
from engine.text.stream import Output
from engine.text.template import TEMPLATE, ChatTemplate, Limits
from engine.text.template_options import TemplateOptions, resolve_options
from engine.text.tokenizer import Tokenizer
from engine.text.tool_history import decode_arguments

GENERATION_CONFIG = "generation_config.json"

Message = Mapping[str, Any]


class ResourceSource(Protocol):
    """Anything with named resources; an `engine.artifact.Artifact` is one."""

    def resource(self, component: str, role: str, /) -> bytes:
        """Bytes of a resource; raises `ArtifactError` naming it when it is absent."""
        ...


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids of a rendered conversation; `thinking` says that it ends inside an open think block."""

    token_ids: list[int]
    thinking: bool


class Frontend:
    """Tokenizer, chat template and stop ids of one artifact.

    `prepare` is synchronous and takes time in proportion to the prompt; call it off the event loop.

    Attributes:
        vocabulary: bytes of each token, by id.
        token_count: how many ids exist.
        stop_ids: ids that end an answer, from `generation_config.json`.
        special_ids: ids that are never text.
        thinks: the template opens a think block when asked to.
    """

    def __init__(
        self, tokenizer: Tokenizer, template: ChatTemplate, stop_ids: tuple[int, ...], variables: Mapping[str, str]
    ) -> None:
        """`variables`: the template's special-token variables, such as `eos_token`."""
        self._tokenizer = tokenizer
        self._template = template
        self._variables = dict(variables)
        self.stop_ids = stop_ids
        self.special_ids = tuple(token.id for token in tokenizer.vocabulary.added if token.special)
        self.vocabulary: Sequence[bytes] = tokenizer.vocabulary.tokens
        self.token_count = len(self.vocabulary)
        self._think_open = tokenizer.vocabulary.added_id(THINK_OPEN)
        self._think_close = tokenizer.vocabulary.added_id(THINK_CLOSE)
        self._shown = list(self.vocabulary)
        hidden = {token.id for token in tokenizer.vocabulary.added if _is_hidden(token)}
        for token_id in hidden.union(stop_ids):
            self._shown[token_id] = b""
        self.thinks = self._opens_think_block()

    @classmethod
    def load(cls, artifact: ResourceSource, template: str | None = None, *, limits: Limits | None = None) -> "Frontend":
        """Read the text resources of `artifact`; `template` replaces its chat template.

        Raises:
            ArtifactError: a resource is missing, empty, damaged, or does not fit the others. The message names it.
            ConfigurationError: the replacement template cannot be used.
        """
        tokenizer_config = artifact.resource("text", TOKENIZER_CONFIG)
        tokenizer = Tokenizer(artifact.resource("text", TOKENIZER), tokenizer_config)
        stop_ids = _stop_ids(artifact.resource("text", GENERATION_CONFIG), len(tokenizer.vocabulary.tokens))
        variables = _special_tokens(json_object(tokenizer_config, TOKENIZER_CONFIG))
        if template is not None:
            try:
                return cls(tokenizer, ChatTemplate(template, limits=limits), stop_ids, variables)
            except ArtifactError as error:
                raise ConfigurationError(f"--chat-template: {error}") from error
        try:
            source = artifact.resource("text", TEMPLATE).decode()
        except UnicodeDecodeError as error:
            raise ArtifactError(f"{TEMPLATE} is not UTF-8: {error}") from error
        return cls(tokenizer, ChatTemplate(source, limits=limits), stop_ids, variables)

    def prepare(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        enable_thinking: bool | None = None,
        reasoning_effort: str | None = None,
        preserve_thinking: bool | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        default_thinking: bool | None = None,
        default_effort: str | None = None,
        default_preserve_thinking: bool | None = None,
    ) -> Prompt:
        """Render and tokenize a conversation.

        Messages are those of Chat Completions; `tool_calls[].function.arguments` may be JSON text or a mapping. The
        three `default_*` are the server's own settings (see `resolve_options`). `continue_final_message` leaves the
        last assistant message open, and no generation prompt follows.

        Raises:
            PromptError: the options contradict each other, or the template refuses the conversation.
        """
        if continue_final_message:
            default_effort = None  # the flag does not apply to an assistant prefill
        options = resolve_options(
            enable_thinking=enable_thinking,
            reasoning_effort=reasoning_effort,
            preserve_thinking=preserve_thinking,
            template_kwargs=template_kwargs,
            default_thinking=default_thinking,
            default_effort=default_effort,
            default_preserve_thinking=default_preserve_thinking,
        )
        token_ids = self._render(messages, tools, options, add_generation_prompt, continue_final_message)
        return Prompt(token_ids, self._ends_thinking(token_ids))

    def encode(self, text: str) -> list[int]:
        """Ids of plain text; spellings of control tokens stay ordinary text."""
        return self._tokenizer.encode(text)

    def wrap_up(self, *, after: bool = True) -> list[int]:
        """What ends a thought that has used up its budget, its closing mark included.

        `after`: with the blank line that stands before an answer; the reader of the answer drops it.
        """
        text = WRAP_UP + THINK_CLOSE + (AFTER_THOUGHT if after else "")
        return self._tokenizer.encode_template(text, lambda ordinary: ordinary)

    def output(self, thinking: bool, stop_strings: Sequence[str] = (), *, exact: bool = False) -> Output:
        """A reader for the answer to a prompt whose `thinking` is given.

        `exact` keeps the white space between a thought and the answer. Raises ValueError: an empty stop string.
        """
        return Output(self._shown, thinking=thinking, stop_strings=stop_strings, exact=exact)

    def _render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        options: TemplateOptions,
        add_generation_prompt: bool,
        continue_final_message: bool,
    ) -> list[int]:
        if continue_final_message and "continue_final_message" not in self._template.variables:
            raise PromptError("invalid_prompt", "this model's chat template cannot continue an assistant message")
        chosen = options.values()
        guard: Guard | None = None
        try:
            guard = Guard(self._tokenizer.control_texts, (messages, tools, chosen))
            values: dict[str, Any] = {
                **self._variables,
                **guard.hide(chosen),
                "messages": guard.hide([_with_decoded_arguments(m, i) for i, m in enumerate(messages)]),
                "add_generation_prompt": add_generation_prompt and not continue_final_message,
            }
            if tools:
                values["tools"] = guard.hide(list(tools))
            if continue_final_message:
                values["continue_final_message"] = True
            return self._tokenizer.encode_template(self._template.render(values), guard.reveal)
        except RecursionError:
            raise PromptError("invalid_prompt", "the messages or tools are nested too deeply", "messages") from None
        except PromptError as error:
            if guard is None:
                raise
            raise PromptError(error.code, guard.reveal(error.message), error.param) from error

    def _ends_thinking(self, token_ids: Sequence[int]) -> bool:
        for token_id in reversed(token_ids):
            if token_id in (self._think_open, self._think_close):
                return token_id == self._think_open
        return False

    def _opens_think_block(self) -> bool:
        try:
            return self.prepare([{"role": "user", "content": "?"}], enable_thinking=True).thinking
        except PromptError as error:
            raise ArtifactError(f"{TEMPLATE}: a plain question cannot be rendered: {error.message}") from error


def _is_hidden(token: AddedToken) -> bool:
    # Channels are split by the text of the think tags, so those are always read as text.
    return token.special and token.text not in (THINK_OPEN, THINK_CLOSE)


def _with_decoded_arguments(message: Message, index: int) -> dict[str, Any]:
    """Copy of `message` whose tool-call arguments are mappings, as templates want them (spec/model.md §14.5)."""
    copy = dict(message)
    calls = copy.get("tool_calls")
    if not isinstance(calls, list):
        return copy
    copy["tool_calls"] = decoded = []
    for number, call in enumerate(calls):
        where = f"messages[{index}].tool_calls[{number}]"
        if not isinstance(call, Mapping):
            raise PromptError("invalid_tool_history", f"{where} is not an object", where)
        function = call.get("function", call)
        arguments = function.get("arguments") if isinstance(function, Mapping) else None
        if isinstance(arguments, str):
            function = {**function, "arguments": decode_arguments(arguments, f"{where}.function.arguments")}
        decoded.append({**call, "function": function} if "function" in call else function)
    return copy


def _stop_ids(data: bytes, token_count: int) -> tuple[int, ...]:
    value = json_object(data, GENERATION_CONFIG).get("eos_token_id")
    ids = value if isinstance(value, list) else [value]
    for number in ids:
        if type(number) is not int or not 0 <= number < token_count:
            raise ArtifactError(f"{GENERATION_CONFIG}: eos_token_id {number!r} is not one of {token_count} token ids")
    if not ids:
        raise ArtifactError(f"{GENERATION_CONFIG}: eos_token_id is an empty list; an answer could never end")
    return tuple(dict.fromkeys(ids))


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Template variables such as `eos_token`; a value is a string or an object with `content`."""
    found: dict[str, str] = {}
    for name, value in config.items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            found[name] = text
    return found
