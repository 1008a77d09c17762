"""Damaged and hostile artifacts: always a named error, never another exception, in bounded memory (spec §1.3, §1.7)."""

import contextlib
import copy
import json
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.artifact import Artifact
from engine.artifact.config import parse_text_config
from engine.artifact.directory import parse_directory
from engine.artifact.header import MAX_JSON_BYTES
from engine.artifact.inspect import lines, summary
from engine.artifact.inventory import expected_parameters
from engine.artifact.strict_json import MAX_VALUES
from engine.artifact.verify import verify
from engine.exits import ArtifactError
from tests.artifact.builder import COMPONENTS
from tests.artifact.test_examples import TINY, TINY_JSON

MAGIC = b"NINFER\0\x03"

# A directory with every kind of record, over a payload of 1536 bytes.
DIRECTORY: dict[str, Any] = {
    "components": {
        "text": {
            "config": {"architectures": ["X"]}, "resources": {"a": "r"}, "proposal": {"domain": "indexed", "rows": 2}
        },
        "mtp": {"config": {}, "target": "text"},
    },
    "objects": [
        {"id": "r", "kind": "resource", "encoding": "raw_bytes_v1", "offset": 0, "bytes": 7},
        {
            "id": "m", "kind": "tensor", "shape": [2, 130], "format": "q5_g64_fp16", "layout": "row_split_k128_v1",
            "offset": 256, "bytes": 528,
        },
        {
            "id": "s", "kind": "tensor", "shape": [], "format": "fp32", "layout": "contiguous_le_v1",
            "offset": 1024, "bytes": 4,
        },
        {
            "id": "i", "kind": "tensor", "shape": [2], "format": "int32", "layout": "contiguous_le_v1",
            "offset": 1280, "bytes": 8,
        },
    ],
    "bindings": {
        "p": {"object": "m"},
        "q": {"parts": [{"object": "m", "range": [0, 130]}]},
        "proposal/token_ids": {"object": "i"},
    },
    "uses": [
        {
            "parameter": "p", "input": "x", "activation_policy": "AllowA4",
            "auxiliaries": {"activation_input_divisor": {"object": "s"}},
        }
    ],
    "files": [{"path": None, "payload_bytes": 1536}],
    "metadata": {"name": "full"},
    "provenance": {},
}  # fmt: skip


def container(text: bytes, payload: int = 1536) -> bytes:
    start = -(-(32 + len(text)) // 4096) * 4096
    head = MAGIC + len(text).to_bytes(8, "little") + bytes(16) + text
    return head.ljust(start, b"\0") + bytes(payload)


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def use_everything(path: Path) -> None:
    """Open an artifact and do all that can be done with it."""
    with Artifact.open(path) as artifact:
        json.dumps(summary(artifact, objects=True, bindings=True))
        list(lines(artifact, objects=True, bindings=True))
        verify(artifact)
        for name in artifact.parameters():
            artifact.shape(name)
            artifact.values(name)
        for component, record in artifact.directory.components.items():
            for role in record.resources:
                artifact.resource(component, role)
        _ = artifact.text_config


def refused_or_used(path: Path) -> None:
    message = None
    try:
        use_everything(path)
    except ArtifactError as error:
        message = str(error)
    assert message is None or (message.startswith(f"{path}: ") and len(message) < 4000)


def test_the_full_directory_is_valid(tmp_path: Path) -> None:
    with Artifact.open(write(tmp_path / "a", container(json.dumps(DIRECTORY).encode()))) as artifact:
        assert artifact.values("q").shape == (1, 130)
        assert artifact.values("q").sum() == 0
        assert verify(artifact).problems == [
            "text config: model_type is None; known: qwen3_5_text, qwen3_5_moe_text",
            "use of 'p' for 'x': auxiliary 'activation_input_divisor' is 0.0, not finite and positive",
            "proposal/token_ids: a token appears twice",
        ]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the file has 0 bytes, less than the header"),
        (TINY[:31], "the file has 31 bytes, less than the header"),
        (
            b"NINFER\0\x02" + TINY[8:],
            "artifact of version 2; this program reads version 3.*`ninfer-artifact upgrade IN OUT`",
        ),
        (b"NINFER\0\x02" + bytes(8), "artifact of version 2; .*`ninfer-artifact upgrade IN OUT`"),
        (b"NINFER\0\x01" + TINY[8:], "artifact of version 1; this program reads version 3.*`ninfer-artifact upgrade`"),
        (b"NINFER\0\x07" + TINY[8:], "artifact of version 7; this program reads version 3"),
        (b"NINPRT\0\x03" + TINY[8:], "a continuation of an artifact; name the entry file"),
        (b"GGUF" + TINY[4:], "not an artifact: it starts with 47 47 55 46"),
        (TINY[:8] + bytes(8) + TINY[16:], "said to have 0 bytes"),
        (TINY[:8] + b"\xff" * 8 + TINY[16:], "said to have 18446744073709551615 bytes; the file has 4356 in all"),
        (TINY[:8] + (4325).to_bytes(8, "little") + TINY[16:], "said to have 4325 bytes"),
        (TINY + b"\0", "the file has 4357 bytes; its directory says 4356"),
        (TINY[:-1], "the file has 4355 bytes; its directory says 4356"),
        (TINY + TINY, "the file has 8712 bytes; its directory says 4356"),
    ],
)
def test_wrong_files_are_refused(tmp_path: Path, data: bytes, message: str) -> None:
    path = write(tmp_path / "a.ninfer", data)
    with pytest.raises(ArtifactError, match=message) as caught:
        Artifact.open(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_the_components_are_valid() -> None:
    directory = parse_directory(json.dumps({**DIRECTORY, "components": COMPONENTS}).encode(), "a")
    parameters = expected_parameters(directory, parse_text_config(directory.components["text"].config))
    assert {parameter.name.split("/")[0] for parameter in parameters} == {"text", "vision", "mtp", "dflash2"}


def test_things_that_are_no_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="missing: cannot be opened: No such file"):
        Artifact.open(tmp_path / "missing")
    with pytest.raises(ArtifactError, match="is not a regular file"):
        Artifact.open(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ArtifactError, match="is not a regular file"):
        Artifact.open(tmp_path / "pipe")
    with pytest.raises(ArtifactError, match="cannot be opened"):
        Artifact.open(f"{tmp_path}/nul\0byte")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"uses":[]', '"uses":[],"uses":[]', "member 'uses' appears twice"),
        ('"name":"tiny"', '"x":{"k":1,"k":2}', "member 'k' appears twice"),
        ('"name":"tiny"', '"x":NaN', "NaN is not a JSON number"),
        ('"name":"tiny"', '"x":-Infinity', "-Infinity is not a JSON number"),
        ('"name":"tiny"', '"x":1e999', "'1e999' is beyond a 64-bit float"),
        ('"name":"tiny"', '"x":' + "9" * 30, "beyond 64 bits"),
        ('"name":"tiny"', '"x":"\\ud800"', "half a surrogate pair"),
        ('"name":"tiny"', '"name":""', r"metadata.name: Expected `str` of length >= 1"),
        ('"name":"tiny"', '"name":"a\\u0000b"', r"metadata.name: Expected `str` matching"),
        ('"uses":[],', "", r"missing members \['uses'\]"),
        ('"uses":[]', '"uses":[],"extra":1', r"unknown members \['extra'\]"),
        ('"uses":[]', '"uses":{}', "uses: Expected `array`, got `object`"),
        ('"bytes":4}', '"bytes":4.0}', r"objects\[1\].bytes: Expected `int`, got `float`"),
        ('"bytes":4}', '"bytes":true}', r"objects\[1\].bytes: Expected `int`, got `bool`"),
        ('"bytes":4}', '"bytes":0}', r"objects\[1\].bytes: Expected `int` >= 1"),
        ('"bytes":4}', '"bytes":4,"note":1}', "unknown field `note`"),
        ('"bytes":4}', '"bytes":5}', r"objects\[1\] 'w.0': ends at 261, beyond the payload of 260 bytes"),
        ('"offset":256', '"offset":-1', r"objects\[1\].offset: Expected `int` >= 0"),
        ('"offset":256', '"offset":6', "starts at 6, before the end of the object before"),
        ('"offset":256', '"offset":18446744073709551615', "beyond the payload"),
        ('"shape":[2]', '"shape":[0]', r"objects\[1\].shape\[0\]: Expected `int` >= 1"),
        ('"shape":[2]', '"shape":[' + ",".join("1" * 17) + "]", "length <= 16"),
        ('"shape":[2]', '"shape":[4294967296,4294967296]', "more than 2\\^64-1 elements"),
        ('"kind":"tensor"', '"kind":"thing"', "Invalid value 'thing'"),
        ('"id":"w.0"', '"id":"r.t"', r"objects\[1\] 'r.t': another object has this id"),
        ('{"object":"w.0"}', '{"object":"r.t"}', r"bindings\['text/final_norm'\]: 'r.t' is a resource, not a tensor"),
        ('{"object":"w.0"}', '{"object":"w.9"}', "'w.9' is not an object"),
        ('{"object":"w.0"}', '{"parts":[]}', "parts: Expected `array` of length >= 1"),
        ('{"object":"w.0"}', "{}", "exactly one of 'object' and 'parts'"),
        ('{"object":"w.0"}', '{"parts":[{"object":"w.0","range":[0,3]}]}', r"range \[0,3\] is not inside 'w.0'"),
        ('{"object":"w.0"}', '{"parts":[{"object":"w.0","range":[1,1]}]}', r"range \[1,1\] is not inside 'w.0'"),
        ('{"object":"w.0"}', '{"parts":[{"object":"w.0","range":[1,2.0]}]}', "Expected `int`, got `float`"),
        ('"uses":[]', '"uses":[{"parameter":"p","input":"x"}]', r"uses\[0\] of 'p': no such parameter is bound"),
        (
            '"uses":[]',
            '"uses":[{"parameter":"text/final_norm","input":"x"},{"parameter":"text/final_norm","input":"x"}]',
            r"uses\[1\] of 'text/final_norm': another use has the input 'x'",
        ),
        (
            '"uses":[]',
            '"uses":[{"parameter":"text/final_norm","input":"x","activation_policy":"A2"}]',
            r"uses\[0\].activation_policy: Invalid enum value 'A2'",
        ),
        ('"path":null', '"path":"a"', "whose path is null"),
        (
            '"payload_bytes":260}',
            '"payload_bytes":260},{"path":"../x","payload_bytes":1}',
            r"files\[1\].path is '../x'",
        ),
        ('"payload_bytes":260}', '"payload_bytes":260},{"path":"a\\\\b","payload_bytes":1}', r"files\[1\].path is"),
        ('"payload_bytes":260}', '"payload_bytes":260},{"path":"..","payload_bytes":1}', r"files\[1\].path is '..'"),
        ('"payload_bytes":260}', '"payload_bytes":260},{"path":null,"payload_bytes":1}', r"files\[1\].path is None"),
        ('"payload_bytes":260}', '"payload_bytes":260},{"path":"a.ninfer","payload_bytes":1}', "is the entry file or"),
        (
            '"payload_bytes":260}',
            '"payload_bytes":260},{"path":"b","payload_bytes":1},{"path":"b","payload_bytes":1}',
            "appears twice",
        ),
        ('"payload_bytes":260}', '"payload_bytes":260},{"path":"b","payload_bytes":18446744073709551615}', "2\\^64-1"),
        ('"text":{', '"txt":{', "no component 'text'"),
        ('"config":{}', '"config":[]', r"components\['text'\].config: Expected `object`, got `array`"),
        ('"config":{}', '"config":{},"target":"vision"', "its target 'vision' is not a component"),
        ('"config":{}', '"config":{},"target":null', "target: Expected `str`, got `null`"),
        ('"config":{}', '"config":{},"proposal":{"domain":"indexed","rows":0}', "rows: Expected `int` >= 1"),
        ('"config":{}', '"config":{},"proposal":{"domain":"full","rows":1}', "unknown field `rows`"),
        ('"text":{', '"mtp":{"config":{},"proposal":{"domain":"full"}},"text":{', "only 'text' has a proposal"),
        ('"x.json":"r.t"', '"x.json":"w.0"', "resource 'x.json' is 'w.0', not a resource object"),
        ('{"components"', '[{"components"', "Expecting"),
        ('"provenance":{}', '"provenance":null', "provenance: Expected `object`, got `null`"),
        ('"provenance":{}', '"provenance":' + '{"a":' * 100_000, "nested too deeply"),
    ],
)
def test_wrong_directories_are_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert TINY_JSON.count(old) == 1
    path = write(tmp_path / "a.ninfer", container(TINY_JSON.replace(old, new).encode(), 260))
    with pytest.raises(ArtifactError, match=message) as caught:
        Artifact.open(path)
    assert str(caught.value).startswith(f"{path}: directory: ")
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("text", [b"\xff\xfe{}", b"[]", b"null", b"{", b"  "])
def test_texts_that_are_no_directory_are_refused(tmp_path: Path, text: bytes) -> None:
    with pytest.raises(ArtifactError, match="directory: "):
        Artifact.open(write(tmp_path / "a", container(text)))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"bf16"', '"bf17"', "object 'w.0': unknown format 'bf17'; known formats: bf16"),
        ('"bf16"', '"BF16"', "unknown format 'BF16'; version 3 spells it 'bf16'"),
        ('"contiguous_le_v1"', '"zip"', "unknown layout 'zip'; format 'bf16' is stored as 'contiguous_le_v1'"),
        ('"contiguous_le_v1"', '"row_split_panel4_v1"', "a load-time permutation, never a file layout"),
        ('"contiguous_le_v1"', '"row_scale_v1"', "layout 'row_scale_v1' does not hold format 'bf16'"),
        ('"shape":[2]', '"shape":[1]', r"object 'w.0': has 4 bytes; bf16 \[1\] takes exactly 2"),
        ('"shape":[2]', '"shape":[1152921504606846976]', "takes exactly 2305843009213693952"),
        ('"offset":256', '"offset":255', "starts at 255, which is not a multiple of 256"),
    ],
)
def test_objects_are_checked_when_they_are_used(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = write(tmp_path / "a.ninfer", container(TINY_JSON.replace(old, new).encode(), 260))
    with Artifact.open(path) as artifact:
        assert any("w.0" in line for line in lines(artifact, objects=True))
        assert artifact.resource("text", "x.json") == bytes(7)
        with pytest.raises(ArtifactError, match=message) as caught:
            artifact.values("text/final_norm")
        assert str(caught.value).startswith(f"{path}: ")
        assert any(
            message.rsplit(": ", maxsplit=1)[-1].split("\\", maxsplit=1)[0][:20] in problem
            for problem in verify(artifact).problems
        )


def test_unknown_encodings_are_refused_when_they_are_used(tmp_path: Path) -> None:
    data = container(TINY_JSON.replace("raw_bytes_v1", "zstd").encode(), 260)
    with Artifact.open(write(tmp_path / "a", data)) as artifact:
        assert artifact.values("text/final_norm").shape == (2,)
        with pytest.raises(ArtifactError, match=r"resource 'r.t': unknown encoding 'zstd'; known: raw_bytes_v1"):
            artifact.resource("text", "x.json")


def peak_of(action: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def refused(path: Path, message: str) -> None:
    with pytest.raises(ArtifactError, match=message):
        Artifact.open(path)


def test_a_huge_directory_is_refused_before_it_is_read(tmp_path: Path) -> None:
    size = MAX_JSON_BYTES + 1
    path = write(tmp_path / "a", MAGIC + size.to_bytes(8, "little") + bytes(16))
    os.truncate(path, 32 + size + 4096)
    assert peak_of(lambda: refused(path, f"has {size} bytes; this program reads at most {MAX_JSON_BYTES}")) < 1 << 20


def test_a_directory_of_countless_values_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    text = b"[" + b"{}," * (MAX_VALUES // 2) + b"{}]"
    path = write(tmp_path / "a", container(text))
    assert peak_of(lambda: refused(path, f"at most {MAX_VALUES}")) < 2 * len(text) + (1 << 20)


def test_a_parameter_said_to_be_larger_than_memory_is_refused(tmp_path: Path) -> None:
    directory = copy.deepcopy(DIRECTORY)
    directory["bindings"]["q"] = {"parts": [{"object": "m", "range": [0, 260]}] * 20_000}
    directory["objects"][1]["shape"] = [2**40, 130]
    with (
        Artifact.open(write(tmp_path / "a", container(json.dumps(directory).encode()))) as artifact,
        pytest.raises(ArtifactError, match="object 'm': has 528 bytes"),
    ):
        artifact.values("q")


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    flips=st.lists(st.tuples(st.integers(0, 4400), st.integers(1, 255)), max_size=4),
    cut=st.none() | st.integers(0, 4400),
    tail=st.binary(max_size=5),
)
def test_flipped_and_cut_files_never_crash(
    tmp_path: Path, flips: list[tuple[int, int]], cut: int | None, tail: bytes
) -> None:
    data = bytearray(TINY)
    for position, mask in flips:
        # Most positions fall on the padding of the file; fold them on to the parts that matter.
        data[position % 460 if position < 4096 else position % len(data)] ^= mask
    path = write(tmp_path / "a", bytes(data[:cut]) + tail)
    refused_or_used(path)


def spots(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value inside a JSON tree."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(spot for key, child in children for spot in spots(child, (*path, key)))]


hostile = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, -1, 1, 2, 7, 255, 256, 2**31, 2**63, 2**64 - 1, 2**64, 10**40, 0.0, 1.0, 1e308]),
    st.sampled_from(
        ["", "m", "r", "s", "text", "\0", "../x", "a", ".", "q8_g32_fp16", "ggml_q6_k", "bf16", "\ud800", "x" * 999]
    ),
    st.sampled_from([[], {}, [[]], [0, 1], [2, 130], {"object": "m"}, {"config": {}}, {"a": {"b": []}}, [1] * 30]),
    st.recursive(st.integers() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3), max_leaves=6),
)
spot = st.sampled_from(spots(DIRECTORY)[1:])


Change = tuple[tuple[Any, ...], Any, str]
actions = st.sampled_from(["set", "delete", "add"])


def changed(tree: Any, changes: list[Change]) -> Any:
    """A copy of a JSON tree with some of its values set, deleted or added to."""
    root = copy.deepcopy(tree)
    for path, value, action in changes:
        *parents, last = path
        target: Any = root
        try:
            for key in parents:
                target = target[key]
            if action == "delete":
                del target[last]
            elif action == "add" and isinstance(target, dict):
                target[str(value)[:20]] = value
            else:
                target[last] = value
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change has removed this place
    return root


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(st.tuples(spot, hostile, actions), min_size=1, max_size=3))
def test_hostile_directories_never_crash(tmp_path: Path, changes: list[Change]) -> None:
    refused_or_used(write(tmp_path / "a", container(json.dumps(changed(DIRECTORY, changes)).encode())))


def test_rotary_dims_beyond_reason_are_refused() -> None:
    config = copy.deepcopy(COMPONENTS["text"]["config"])
    config["head_dim"] = 2**60
    config["rope_parameters"]["mrope_section"] = [2**57, 2**56, 2**56]
    with pytest.raises(ArtifactError, match=r"5.76461e\+17 rotary dims are more than 65536"):
        parse_text_config(config)


@pytest.mark.parametrize("path", spots(COMPONENTS)[1:], ids=lambda path: "/".join(map(str, path)))
def test_hostile_configurations_never_crash(path: tuple[Any, ...]) -> None:
    values: list[Any] = [None, True, -1, 0, 1, 3, 2**31, 2**62, 2**64 - 1, 0.0, 0.5, 1e-300, 1e300, "", "text", "qwen3"]
    values += [[], {}, [[]], [{}], [0], [2, 1, 1], [2**62, 2**61, 2**61], ["full_attention"], {"a": 1}]
    for change in [*((path, value, "set") for value in values), (path, None, "delete"), (path, [], "add")]:
        directory = {**DIRECTORY, "components": changed(COMPONENTS, [change])}
        with contextlib.suppress(ArtifactError):
            parsed = parse_directory(json.dumps(directory).encode(), "a")
            expected_parameters(parsed, parse_text_config(parsed.components["text"].config))
