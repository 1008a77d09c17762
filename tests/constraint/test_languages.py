"""Regular expressions, choices, GBNF and schemas as such: what is accepted, and what is refused."""

import re
from typing import Any

import llguidance
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.constraint.constraint import Constraint, grammar, json_object, json_schema, matching, one_of
from engine.constraint.errors import ConstraintError
from engine.constraint.gbnf import to_lark
from engine.constraint.process import Limits
from engine.constraint.regex import full_match, search
from engine.constraint.worker import _Vocabulary as LibraryVocabulary
from tests.constraint.conftest import Judge
from tests.constraint.words import VOCABULARY, ids

SETUP = VOCABULARY.setup(Limits())
TOKENIZER = llguidance.LLTokenizer(llguidance.TokenizerWrapper(LibraryVocabulary(SETUP)))


def accepts(constraint: Constraint, text: str) -> bool:
    matcher = llguidance.LLMatcher(
        TOKENIZER, llguidance.LLMatcher.grammar_from_lark(constraint.source(after_thought=False).decode())
    )
    assert not matcher.is_error(), matcher.get_error()
    tokens = ids(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


ATOMS = st.sampled_from(
    ["a", "b", "é", r"\d", r"\w", ".", "[a-c]", "[^a]", r"[\d_]", r"\.", r"\x41", r"é", "(?:ab)", "-"]
)
EXPRESSIONS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.builds("({})".format, inner),
        st.builds("{}{}".format, inner, inner),
        st.builds("(?:{}|{})".format, inner, inner),
        st.builds("(?:{}){}".format, inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{2,}", "*?"])),
    ),
    max_leaves=6,
)
TEXTS = st.text(alphabet="abcéA1_.- \n", max_size=7)


@settings(max_examples=80, deadline=None)
@given(EXPRESSIONS, st.lists(TEXTS, min_size=3, max_size=6), st.data())
def test_expressions_mean_what_python_means(expression: str, texts: list[str], data: st.DataObject) -> None:
    compiled = re.compile(expression, re.ASCII)
    texts = [*texts, data.draw(st.from_regex(compiled, fullmatch=True, alphabet="abcéA1_.- "))]
    constraint = matching(expression)
    for text in texts:
        # "." leaves out more line ends than Python's, none of them in these texts.
        assert accepts(constraint, text) == (compiled.fullmatch(text) is not None), (expression, text)


@settings(max_examples=60, deadline=None)
@given(EXPRESSIONS, st.booleans(), st.booleans(), st.lists(TEXTS, min_size=2, max_size=5))
def test_patterns_are_searched_for(expression: str, begins: bool, ends: bool, texts: list[str]) -> None:
    whole = f"{'^' * begins}{expression}{'$' * ends}"
    python = re.compile(f"{'^' * begins}{expression}{chr(92) + 'Z' if ends else ''}", re.ASCII)
    constraint = matching("x")
    made = Constraint(kind=constraint.kind, rules=f"answer: T0\nT0: /{search(whole)}/\n")
    for text in texts:
        assert accepts(made, text) == (python.search(text) is not None), (whole, text)


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("foo**", "nothing to repeat"), ("*a", "nothing to repeat"), ("a{3,1}", "below its least"),
        ("(a", "not closed"),
        ("a)", "closing bracket"), ("[a", "not closed"), ("[]", "empty"), ("[b-a]", "ends before"),
        (r"\1", "back reference"),
        (r"\bx", "word bound"), (r"\p{L}", "properties"), ("(?i)a", "flag"), ("(?=a)", "look-around"),
        ("(?<!a)b", "look"),
        ("a^b", "beginning of a top"), ("a$b", "end of a top"), ("(^a)", "beginning of a top"),
        ("(a$)", "end of a top"),
        ("\\", "backslash"), (r"\q", "not known"), ("[[:alpha:]]", "POSIX"),
        ("a{9000}", "larger than"),
        ("(a{90}){90}" * 9, "states"), (r"[^\s\S]", "no text"), ("(" * 300 + ")" * 300, "deeper"),
        (r"\ud800", "surrogate"),
        ("a" * 70_000, "characters"), ("a++", "nothing to repeat"), (r"\xg1", "code point"), (r"\u12", "complete"),
    ],
)  # fmt: skip
def test_refused_expressions(expression: str, words: str) -> None:
    with pytest.raises(ConstraintError, match=words) as refused:
        full_match(expression)
    assert refused.value.code == "invalid_regex"


@pytest.mark.parametrize(
    ("expression", "text"),
    [("a{,3}", "a{,3}"), ("x{", "x{"), ("{}", "{}"), ("]", "]"), (r"\ud83d\ude00", "😀"), ("(?<n>a)", "a")],
)
def test_what_looks_like_a_mistake_and_is_none(expression: str, text: str) -> None:
    assert accepts(matching(expression), text)


@given(
    st.lists(st.text(alphabet='abé \n"/\\|', max_size=4), min_size=1, max_size=5),
    st.text(alphabet='abé \n"/\\|', max_size=4),
)
@settings(max_examples=80, deadline=None)
def test_choices_are_exact(options: list[str], other: str) -> None:
    constraint = one_of(options)
    assert all(accepts(constraint, option) for option in options)
    assert accepts(constraint, other) == (other in options)


@pytest.mark.parametrize(
    ("source", "right", "wrong"),
    [
        ('root ::= "a" | "ab" "c"', ["a", "abc"], ["ab", ""]),
        ('root ::= ws " " "x"\nws ::= [ ]*', [" x", "   x"], ["x"]),
        ('root ::= "(" root ")" | ""', ["", "(())"], ["(()"]),
        ("root ::= e\ne ::= e \"+\" e | [0-9]+ # sum", ["1", "1+22+3"], ["1+", "+1"]),
        ('root ::= (item ", ")* item\nitem ::= [^,\\n]+', ["a", "a, b"], [""]),
        ('root ::= "\\u00e9" "\\x41" "\\"" [\\]\\-] .', ['éA"]\n', 'éA"-x'], ['éA"x']),
        ("root ::=\n  # remark\n  (\n  \"a\" |\n  \"b\"\n  ){2,3}", ["ab", "bbb"], ["a", "aaaa"]),
        ('root ::= a-b a_B "."\na-b ::= "x"?\na_B ::= "y"*', [".", "xyy."], ["yx."]),
        ('root ::= (expr "=" ws term "\\n")+ \nexpr ::= term ([-+*/] term)*\n'
         'term ::= [a-z] [a-z0-9_]* ws | [0-9]+ ws | "(" ws expr ")" ws\nws ::= [ \\t\\n]*',
         ["1+2=3\n", "(a1 -2) =\n x \n\n"], ["1+2=3", "=3\n"]),
        ('root ::= [a-z]* "a" root | "."', ["zaaba.", "a.", "."], ["za", "b."]),
        ('root ::= [0-9]+ ws "=" ws [0-9]+ "\\n" root | "end"\nws ::= " "*', ["1 =  2\nend"], ["1 = 2"]),
    ],
)  # fmt: skip
def test_grammars(source: str, right: list[str], wrong: list[str]) -> None:
    constraint = grammar(source)
    for text in right:
        assert accepts(constraint, text), text
    for text in wrong:
        assert not accepts(constraint, text), text


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("", "no rule root"), ('foo ::= "a"', "no rule root"), ("root ::= x", "not defined"),
        ('root ::= "a', "not closed"),
        ('root = "a"', "::="), ('root ::= ("a"', "group"), ("root ::= [b-a]", "ends before"),
        ("root ::= root", "never ends"),
        ('root ::= "a"{3,2}', "least"), ('root ::= "a"{99999}', "larger"), ('root ::= *', "nothing to repeat"),
        ('root ::= "\\q"', "escape"), ('root ::= "a"\nroot ::= "b"', "twice"),
        ("root ::= " + "(" * 100, "deeper"),
        ("root ::= []", "empty"), ('root ::= "a" )', "not expected"),
        ("root ::= a\na ::= b a\nb ::= [x]", "never ends"),
        ("x" * 300_000, "characters"), ('root ::= "a"{x}', "quantifier"),
    ],
)  # fmt: skip
def test_refused_grammars(source: str, words: str) -> None:
    with pytest.raises(ConstraintError, match=words) as refused:
        to_lark(source)
    assert refused.value.code == "invalid_grammar"


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"type": "string", "pattern": "^a|b$"}, ['"axx"', '"xxb"'], ['"xx"']),
        ({"type": "integer"}, ["9223372036854774784", "-1", "0"], ["9223372036854775808", "1.0", "1e3"]),
        ({"type": ["integer", "null"], "exclusiveMinimum": 0}, ["1", "null"], ["0", '"1"']),
        ({"items": [{"type": "integer"}], "additionalItems": False, "type": "array"},
         ["[1]", "[]"], ["[1,2]", '["a"]']),
        ({"properties": {"b": {}, "a": {"type": "null"}}, "type": "object", "additionalProperties": False},
         ['{"b":1,"a":null}', "{}"], ['{"a":null,"b":1}', '{"c":1}', '{ "b":1}']),
        ({"properties": {"b": {}}, "type": "object"}, ['{"b":1,"x":[]}', '{"x":1}'], ["[]"]),
        ({"anyOf": [{"required": ["a"]}, {"required": ["b"]}], "type": "object",
          "properties": {"a": {"type": "null"}, "b": {"type": "null"}}}, ['{"a":null}', '{"b":null}'], ["{}"]),
        ({"$ref": "#/definitions/a~1b", "definitions": {"a/b": {"const": 1}}}, ["1"], ["2"]),
        ({"const": {"b": [1, 2.5, "x"], "a": None}},
         ['{"b":[1,2.5,"x"],"a":null}'], ['{"a":null,"b":[1,2.5,"x"]}']),
        (True, ["[]", '{"a":{}}', "1.5e3"], ["[", "nul"]),
        ({"type": "object", "properties": {"format": {"type": "null"}, "x-guidance": {}, "$id": {}}},
         ['{"format":null}'], []),
    ],
)  # fmt: skip
def test_schemas(schema: Any, right: list[str], wrong: list[str]) -> None:
    constraint = json_schema(schema)
    for text in right:
        assert accepts(constraint, text), text
    for text in wrong:
        assert not accepts(constraint, text), text


def test_deep_schemas() -> None:
    schema: Any = {"const": 1}
    text = "1"
    for _ in range(250):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"], "additionalProperties": False}
        text = f'{{"a":{text}}}'
    assert accepts(json_schema(schema), text)
    for _ in range(20):
        schema = {"allOf": [schema]}
    with pytest.raises(ConstraintError, match="deeper than 256"):
        json_schema(schema)


def test_what_only_the_library_can_tell(check: Judge) -> None:
    for constraint in (json_object(), matching("a*"), one_of([""]), grammar('root ::= "a" root | "b"')):
        check(constraint)
    for schema, code in (
        ({"oneOf": [{"type": "string"}, {"type": "string"}]}, "unsupported_json_schema"),
        ({"type": "object", "properties": {"a": False}, "required": ["a"]}, "unsatisfiable_json_schema"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "unsatisfiable_json_schema"),
        ({"type": "string", "pattern": "^a$", "minLength": 2}, "unsatisfiable_json_schema"),
    ):
        for _ in range(2):  # the second time from memory
            with pytest.raises(ConstraintError) as refused:
                check(json_schema(schema))
            assert refused.value.code == code
