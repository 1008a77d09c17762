"""A small vocabulary with tokens that straddle whatever a grammar has boundaries for, and ways to write and read it."""

from collections.abc import Iterable

from engine.constraint.process import Vocabulary

END, OTHER_END, CLOSE, CALL = 256, 257, 258, 260
_PLAIN = (
    b'{"', b'":', b'","', b'"}', b'},{', b"[]", b"{}", b'":"', b"true", b"false", b"null", b"12", b"0.5",
    b'"a"', b"\n\n", b"</think", b"</param", b"eter>\n", b"<function", b"<parameter=",
    b">\n", b"name", b"th", b"\xc3", b"\xa9x", b"  ",
)  # fmt: skip
TOKENS = [bytes([code]) for code in range(256)]
TOKENS += [b"<|im_end|>", b"<|endoftext|>", b"</think>", b"<think>", b"<tool_call>", b"</tool_call>", *_PLAIN]
COUNT = len(TOKENS)
VOCABULARY = Vocabulary(tokens=TOKENS, special=[END, OTHER_END], end=END)


def ids(text: str | bytes) -> list[int]:
    """One token a byte."""
    return list(text.encode() if isinstance(text, str) else text)


def said(tokens: Iterable[int]) -> str:
    """The text of an answer, without its end."""
    return b"".join(TOKENS[token] for token in tokens if token not in (END, OTHER_END)).decode()
