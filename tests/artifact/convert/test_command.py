"""The command, its progress, its memory, and what is left when it is killed."""

import argparse
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from engine.artifact import Artifact
from engine.artifact.config import parse_text_config
from engine.artifact.convert.cli import add_arguments, run
from engine.artifact.convert.progress import show_progress
from engine.artifact.convert.report import report_path
from engine.artifact.convert.tensors import text_sources
from engine.cli.artifact import main
from engine.exits import ConfigurationError, NInferError
from tests.artifact.convert.checkpoints import write_checkpoint, write_resources


def arguments(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(words)


def python(code: str, *words: str) -> "subprocess.Popen[str]":
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, "-c", code, *words], stdout=subprocess.PIPE, text=True, env=environment)


def write_synthetic(folder: Path) -> int:
    """A two-layer checkpoint of some 100 MB without torch. Returns the bytes of its largest tensor."""
    config = {
        "architectures": ["Qwen3_5ForCausalLM"],
        "hidden_size": 1024,
        "vocab_size": 16384,
        "num_hidden_layers": 2,
        "layer_types": ["linear_attention", "full_attention"],
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
        "rms_norm_eps": 1e-6,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_section": [6, 5, 5]},
        "linear_num_key_heads": 4,
        "linear_key_head_dim": 64,
        "linear_num_value_heads": 8,
        "linear_value_head_dim": 64,
        "linear_conv_kernel_dim": 4,
        "intermediate_size": 4096,
    }
    write_resources(folder, vision=False)
    (folder / "config.json").write_text(json.dumps(config))
    record = config | {"model_type": "qwen3_5_text"}
    sources = text_sources(parse_text_config(record), "model.", lambda name: True)
    shapes = {source.tensor: source.shape for source in sources.values()}
    header, position = {}, 0
    for name, shape in shapes.items():
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [position, position + size]}
        position += size
    text = json.dumps(header).encode()
    # bfloat16 words between 0.5 and 2, repeated: finite, and quick to write.
    block = np.random.default_rng(3).integers(0x3F00, 0x4000, 1 << 18, dtype=np.uint16).tobytes()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for begin in range(0, position, len(block)):
            file.write(block[: position - begin])
    return max(2 * int(np.prod(shape)) for shape in shapes.values())


MEASURE = """
import sys
from pathlib import Path
from engine.artifact.convert.pipeline import Request, convert

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))

before = peak()
convert(Request(model=Path(sys.argv[1]), recipe="nano", out=Path(sys.argv[2]), rows_per_chunk=256))
print("torch" in sys.modules, peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")
def test_memory_is_bounded_by_chunks(tmp_path: Path) -> None:
    """The promise is twice the largest tensor and 1 GiB; here less than the largest tensor alone, without torch."""
    largest = write_synthetic(tmp_path)
    process = python(MEASURE, str(tmp_path), str(tmp_path / "out.ninfer"))
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    torch_imported, growth = output.split()[-2:]
    assert torch_imported == "False"
    assert int(growth) < largest
    with Artifact.open(tmp_path / "out.ninfer") as artifact:
        assert artifact.shape("text/token_embedding") == (16384, 1024)


KILLED = """
import sys, time
from pathlib import Path
from engine.artifact.convert.pipeline import Request, convert

def progress(done, total):
    if done > total / 2:
        print("half", flush=True)
        time.sleep(60)

convert(Request(model=Path(sys.argv[1]), recipe="bf16", out=Path(sys.argv[2])), progress)
"""


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_killed_in_the_middle(tmp_path: Path) -> None:
    model, out = tmp_path / "model", tmp_path / "out.ninfer"
    write_checkpoint(model)
    before = digests(model)
    process = python(KILLED, str(model), str(out))
    assert process.stdout is not None
    assert process.stdout.readline() == "half\n"
    process.send_signal(signal.SIGKILL)
    assert process.wait(timeout=10) == -signal.SIGKILL
    process.stdout.close()
    assert not out.exists()
    assert not list(tmp_path.glob("*.conversion.json"))
    assert digests(model) == before
    # The next attempt is not disturbed by what the killed one left, names it, and removes it when told to.
    (left,) = tmp_path.glob(".out.ninfer.*.tmp")
    other = tmp_path / f".out.ninfer2{left.name.removeprefix('.out.ninfer')}"
    other.write_text("of another output")
    words = ["--model", str(model), "--recipe", "bf16", "--out", str(out)]
    screen = io.StringIO()
    assert run(arguments(*words), Console(file=screen)) == 0
    assert f"{left} (" in screen.getvalue()
    assert "--clean removes them" in screen.getvalue()
    assert left.exists()
    out.unlink()
    report_path(out).unlink()
    assert run(arguments(*words, "--clean"), Console(file=screen)) == 0
    assert f"removed {left}" in screen.getvalue().replace("\n", "")
    assert not left.exists()
    assert other.exists()
    with Artifact.open(out) as artifact:
        assert artifact.text_config.hidden_size == 64


COMMAND = """
import resource, sys
from engine.cli.artifact import main

if int(sys.argv[1]):
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), int(sys.argv[1])))
sys.exit(main(["convert", "--model", sys.argv[2], "--recipe", "nano", "--out", sys.argv[3]]))
"""


def test_terminated_in_the_middle(tmp_path: Path) -> None:
    model, out = tmp_path / "model", tmp_path / "out.ninfer"
    model.mkdir()
    write_synthetic(model)
    process = python(COMMAND, "0", str(model), str(out))
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob(".out.ninfer.*.tmp")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 143
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_disk_that_takes_no_more(tmp_path: Path) -> None:
    """The kernel refuses to grow files beyond 100 kB."""
    write_checkpoint(tmp_path / "model")
    process = python(COMMAND, "100000", str(tmp_path / "model"), str(tmp_path / "out.ninfer"))
    process.communicate(timeout=60)
    assert process.returncode == 3
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_converted_artifacts_verify(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The checks of `ninfer-artifact verify` agree: words, padding, inventory, uses."""
    write_checkpoint(tmp_path / "model", "moe")
    for recipe in ("bf16", "qwen3_6_35b_a3b"):
        out = str(tmp_path / f"{recipe}.ninfer")
        words = ["--model", str(tmp_path / "model"), "--recipe", recipe, "--out", out, "--components", "text,mtp"]
        assert main(["convert", *words]) == 0
        assert main(["verify", out]) == 0, capsys.readouterr()
        assert f"{out}: Qwen3_5MoeForCausalLM: good" in capsys.readouterr().out


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, out, screen = tmp_path / "model", tmp_path / "out.ninfer", io.StringIO()
    write_checkpoint(model)
    template = tmp_path / "other.jinja"
    template.write_text("other")
    words = ["--model", str(model), "--recipe", "nano", "--out", str(out), "--components", "text,mtp"]
    words += ["--name", "tiny", "--rows-per-chunk", "5", "--resource", f"chat_template.jinja={template}"]
    assert run(arguments(*words), Console(file=screen)) == 0
    assert "convert model: " in screen.getvalue()
    assert "(100%)" in screen.getvalue()
    assert f"{out}: " in capsys.readouterr().out
    with Artifact.open(out) as artifact:
        assert artifact.name == "tiny"
        assert artifact.resource("text", "chat_template.jinja") == b"other"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--device", "cuda"], "device 'cuda' cannot convert in this version; use cpu"),
        (["--components", "text,text"], "names one twice"),
        (["--components", "text,proposal"], "component 'proposal' cannot be converted"),
        (["--components", "mtp"], "always has the component text"),
        (["--resource", "tokenizer.json"], r"'tokenizer\.json' is not ROLE=PATH"),
        (["--max-file-bytes", "0"], "max file bytes is 0"),
        (["--max-file-bytes", "100"], "not less than the file limit of 100"),
    ],
)
def test_command_refusals(words: list[str], message: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "model")
    base = ["--model", str(tmp_path / "model"), "--recipe", "bf16", "--out", str(tmp_path / "out.ninfer")]
    with pytest.raises(NInferError, match=message):
        run(arguments(*base, *words), Console(file=io.StringIO()))
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_unreadable_model_is_named(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors").mkdir()
    with pytest.raises(NInferError, match=r"neither model\.safetensors"):
        run(arguments("--model", str(tmp_path / "model"), "--recipe", "bf16", "--out", str(tmp_path / "x")))


def test_progress_lines_are_seconds_apart() -> None:
    now = 0.0
    screen = io.StringIO()
    with show_progress(Console(file=screen, width=200), "convert x", lambda: now) as progress:
        for step in range(1, 101):
            now = step * 0.2
            progress(step * 1_000_000, 100_000_000)
    lines = screen.getvalue().splitlines()
    assert [line.split(" MB")[0] for line in lines] == [
        f"convert x: {done} of 100" for done in (25, 50, 75, 100)
    ]  # fmt: skip
    assert lines[0].endswith("(25%), 5 MB/s, 15 s left")


def test_progress_on_a_terminal_is_a_bar() -> None:
    screen = io.StringIO()
    with show_progress(Console(file=screen, force_terminal=True, width=120), "convert x") as progress:
        progress(50_000_000, 100_000_000)
        progress(100_000_000, 100_000_000)
    assert "━" in screen.getvalue()
    assert "100.0/100.0 MB" in screen.getvalue()


def test_unknown_recipe_is_a_configuration_error(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "model")
    words = ["--model", str(tmp_path / "model"), "--recipe", "q2", "--out", str(tmp_path / "out.ninfer")]
    with pytest.raises(ConfigurationError, match="unknown recipe 'q2'"):
        run(arguments(*words))
