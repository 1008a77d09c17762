"""Calls in the form of the model's own markup, held to their declarations (spec/serving.md §6.5).

    <tool_call>
    <function=NAME>
    <parameter=KEY>
    VALUE
    </parameter>
    </function>
    </tool_call>

Once a call begins, its framing and the name of a tool are enforced. Arguments of an ordinary tool stay open; those of a
strict one follow its schema, in the order of declaration, texts raw and everything else as compact JSON.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from engine.constraint.constraint import Constraint, quoted
from engine.constraint.errors import ConstraintError, pointer
from engine.constraint.language import Choice, pattern, text, times
from engine.constraint.regex import search
from engine.constraint.schema import ANNOTATIONS, Path, read_schema, target_of

OPEN, CLOSE = "<tool_call>", "\n</tool_call>"
END_OF_VALUE = "\n</parameter>\n"
MAX_REFERENCES = 64

_VALUE = "value[lazy]: /(?s:.*)\\n<\\/parameter>\\n/\n"
_OPEN_ARGUMENTS = 'open: ("<parameter=" KEY ">\\n" value)*\nKEY: /[^<>\\n]+/\n'
_NO_CLOSE = "~/(?s:.*)\\n<\\/parameter>(?s:.*)/"


class Declared(Protocol):
    """A tool; `engine.text.tools.Tool` is one."""

    @property
    def name(self) -> str: ...
    @property
    def schema(self) -> Mapping[str, Any]: ...
    @property
    def strict(self) -> bool: ...


class Chosen(Protocol):
    """Which tools may be called how often; `engine.text.tools.ToolChoice` is one."""

    @property
    def minimum(self) -> int: ...
    @property
    def maximum(self) -> int | None: ...
    @property
    def names(self) -> frozenset[str] | None: ...


def tool_grammar(tools: Sequence[Declared], choice: Chosen, *, content: Constraint | None = None) -> Constraint:
    """An answer of text or calls, or of calls alone where the choice forces them. `content` is the form of the text.

    Raises:
        ConstraintError: a strict tool's schema cannot be enforced; the pointer is within its parameters.
    """
    callable_tools = [tool for tool in tools if choice.names is None or tool.name in choice.names]
    if not callable_tools or choice.maximum == 0:
        if content is not None:
            return content
        return Constraint(kind="tools", rules=f"answer: T0\nT0: /(?s:.*)/ & ~/(?s:.*){_regex(OPEN)}(?s:.*)/\n")
    more = times(max(0, choice.minimum - 1), None if choice.maximum is None else choice.maximum - 1)
    again = "" if choice.maximum == 1 else f' ("\\n{OPEN}" call){more}'
    rules = [_VALUE, _OPEN_ARGUMENTS]
    if choice.minimum > 0:
        rules.append(f"answer: {quoted(OPEN)} call{again}\n")
    elif content is not None:
        rules += [f"answer: content | {quoted(OPEN)} call{again}\n", content.rules.replace("answer:", "content:", 1)]
    else:
        rules += [
            f"answer: TEXT | before call{again}\n",
            f"before[lazy]: /(?s:.*){_regex(OPEN)}/\n",
            "TEXT: /(?s:.*)/\n",
        ]
    names = " | ".join(f"tool{index}" for index in range(len(callable_tools)))
    rules.append(f'call: "\\n<function=" ({names}) {quoted("</function>" + CLOSE)}\n')
    for index, tool in enumerate(callable_tools):
        begin = quoted(f"{tool.name}>\n")
        if tool.strict:
            writer = _Strict(tool.schema, f"tool{index}")
            rules.append(f"tool{index}: {begin} {writer.arguments()}\n{''.join(writer.rules)}")
        else:
            rules.append(f"tool{index}: {begin} open\n")
    blank = choice.minimum > 0 or content is not None
    return Constraint(kind="tools", rules="".join(rules), blank=blank, suspect=content.suspect if content else "")


def check_strict(tool: Declared) -> None:
    """Raises ConstraintError: the tool's parameters cannot be enforced; the pointer is within them."""
    _Strict(tool.schema, "tool0").arguments()


class _Strict:
    """Writes the arguments of one strict tool."""

    def __init__(self, schema: Mapping[str, Any], prefix: str) -> None:
        self.root, self.prefix = schema, prefix
        self.rules: list[str] = []

    def arguments(self) -> str:
        read_schema(self.root)  # refuses what could not be enforced anywhere
        where, schema = self._resolved(())
        if schema.get("type") != "object" or schema.get("additionalProperties") is not False:
            raise _unsupported("strict parameters are an object with additionalProperties false", where)
        known = ANNOTATIONS | {"type", "properties", "required", "additionalProperties", "$id", "id"}
        for word in schema:
            if word not in known and not word.startswith("x-"):
                raise _unsupported(f"{word!r} at the root of strict parameters is not supported", (*where, word))
        required = schema.get("required", ())
        parts = []
        for number, name in enumerate(schema.get("properties", {})):
            if not name or any(letter in name for letter in "<>\n"):
                raise _unsupported(f"a parameter cannot be called {name!r}", (*where, "properties", name))
            parameter = f"{self.prefix}p{number}"
            value = self._value((*where, "properties", name), f"{self.prefix}v{number}")
            self.rules.append(f"{parameter}: {quoted(f'<parameter={name}>' + chr(10))} {value}\n")
            parts.append(parameter if name in required else f"{parameter}?")
        return " ".join(parts)

    def _value(self, path: Path, name: str) -> str:
        """The grammar of a value and its end."""
        kinds = self._texts(path, 0)
        if kinds == {True}:
            return self._text(path, name)
        if True in kinds:
            raise _unsupported("a strict parameter is either a text or not; this one may be both", path)
        self.rules.append(f"{name}: %json {read_schema(self.root, path).text}\n")
        return f"{name} {quoted(END_OF_VALUE)}"

    def _texts(self, path: Path, depth: int) -> set[bool]:
        """Whether values that fit may be texts (True), and whether they may be something else (False)."""
        path, schema = self._resolved(path, depth)
        if isinstance(schema, bool):
            return {True, False} if schema else set()
        found = {True, False}
        types = schema.get("type")
        if types is not None:
            found = {kind == "string" for kind in ([types] if isinstance(types, str) else types)}
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if values is not None:
            found &= {isinstance(value, str) for value in values}
        for word in ("anyOf", "oneOf"):
            if word in schema:
                branches = [self._texts((*path, word, index), depth + 1) for index in range(len(schema[word]))]
                found &= set().union(*branches)
        for index in range(len(schema.get("allOf", ()))):
            found &= self._texts((*path, "allOf", index), depth + 1)
        if "$ref" in schema:
            found &= self._texts(target_of(self.root, schema["$ref"], (*path, "$ref")), depth + 1)
        return found

    def _text(self, path: Path, name: str) -> str:
        terms = self._terms(path, 0)
        if not terms:
            return "value"
        terminal = name.upper()
        self.rules.append(f"{terminal}_RAW: {' & '.join([*terms, _NO_CLOSE, '/(?s:.*)/'])}\n")
        self.rules.append(f"{terminal}: {terminal}_RAW {quoted(END_OF_VALUE)}\n")
        return terminal

    def _terms(self, path: Path, depth: int) -> list[str]:
        """Terminals that a text must match, all of them."""
        path, schema = self._resolved(path, depth)
        if isinstance(schema, bool):
            return []
        terms = []
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if values is not None:
            texts = tuple(text(value) for value in values if isinstance(value, str))
            terms.append(f"/{pattern(Choice(texts))}/")
        least, most = schema.get("minLength", 0), schema.get("maxLength")
        if least or most is not None:
            terms.append(f"/(?s:.){times(int(least), None if most is None else int(most))}/")
        if "pattern" in schema:
            terms.append(f"/{search(schema['pattern'])}/")
        for word in ("anyOf", "oneOf"):
            if word in schema:
                branches = [
                    " & ".join(self._terms((*path, word, index), depth + 1)) or "/(?s:.*)/"
                    for index in range(len(schema[word]))
                    if True in self._texts((*path, word, index), depth + 1)
                ]
                terms.append(f"({' | '.join(branches)})")
        for index in range(len(schema.get("allOf", ()))):
            terms += self._terms((*path, "allOf", index), depth + 1)
        if "$ref" in schema:
            terms += self._terms(target_of(self.root, schema["$ref"], (*path, "$ref")), depth + 1)
        return terms

    def _resolved(self, path: Path, depth: int = 0) -> tuple[Path, Any]:
        """The schema at `path`, followed through bare references."""
        if depth > MAX_REFERENCES:
            raise _unsupported("a text's schema refers to itself", path)
        for _ in range(MAX_REFERENCES):
            schema: Any = self.root
            for step in path:
                schema = schema[step]
            if not isinstance(schema, Mapping) or set(schema) - ANNOTATIONS != {"$ref"}:
                return path, schema
            path = target_of(self.root, schema["$ref"], (*path, "$ref"))
        raise _unsupported("references lead in a circle", path)


def _regex(literal: str) -> str:
    return pattern(text(literal))


def _unsupported(message: str, path: Path) -> ConstraintError:
    return ConstraintError("unsupported_json_schema", message, pointer(*path))
