"""Perplexity and comparison: by definition, and as transformers computes them."""

import hashlib
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from engine.cli.artifact import main as artifact_main
from engine.cli.perplexity import main
from engine.exits import ConfigurationError, ExitCode
from engine.quality.comparison import Comparison, compare
from engine.quality.corpus import Corpus, Stream, read_corpus
from engine.quality.perplexity import perplexity, score, totals
from engine.quality.subject import SCORE_TILE, Settings, Subject
from engine.quality.windows import blocks, sliding
from tests.quality.conftest import Small

ROOT = Path(__file__).resolve().parents[2]
TEXT = "".join(chr(33 + 7 * i % 90) + (" " if i % 5 == 0 else "") for i in range(120))


@given(tokens=st.integers(1, 200), context=st.integers(2, 50), data=st.data())
def test_every_token_but_the_first_is_scored_once(tokens: int, context: int, data: st.DataObject) -> None:
    stride = data.draw(st.integers(1, context - 1))
    windows = list(sliding(tokens, context, stride))
    assert [token for window in windows for token in range(window.first, window.end)] == list(range(1, tokens))
    for index, window in enumerate(windows):
        assert window.end - window.begin <= context
        assert window.targets > 0
        if index:
            assert window.first - window.begin == context - stride
            assert window.targets == stride or window.end == tokens
    if windows:
        assert (windows[0].begin, windows[0].first, windows[0].end) == (0, 1, min(context, tokens))


def logs_of(small: Small, ids: list[int]) -> torch.Tensor:
    """Log-probabilities float64 [T, token count] by transformers."""
    model: Any = AutoModelForCausalLM.from_pretrained(small.folder, dtype=torch.float32)
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([ids]), use_cache=False).logits[0, :, :259]
    return logits.double().log_softmax(-1)


@pytest.mark.parametrize(("context", "stride"), [(40, 17), (500, 100)])
def test_scores_are_those_of_transformers(context: int, stride: int, small: Callable[[str], Small]) -> None:
    model = small("dense")
    subject = Subject(model.artifact)
    ids = subject.tokenizer.encode(TEXT)
    (stream,) = score(subject, Corpus("x", "text", "", (Stream("a", "b", TEXT),)), context, stride)
    expected = 0.0
    for window in sliding(len(ids), context, stride):
        logs = logs_of(model, ids[window.begin : window.end])
        expected -= sum(float(logs[t - window.begin - 1, ids[t]]) for t in range(window.first, window.end))
    assert stream.scored == len(ids) - 1
    assert stream.nll == pytest.approx(expected, rel=1e-4)
    assert totals([stream])["perplexity"] == pytest.approx(math.exp(expected / (len(ids) - 1)), rel=1e-3)


def test_tiles_and_chunks_do_not_matter(small: Callable[[str], Small], monkeypatch: pytest.MonkeyPatch) -> None:
    model = small("dense").artifact
    corpus = Corpus("x", "text", "", (Stream("a", "b", TEXT), Stream("c", "d", TEXT[:30])))
    whole = totals(score(Subject(model), corpus, 100, 50))
    monkeypatch.setattr("engine.quality.subject.SCORE_TILE", 7)
    monkeypatch.setattr("engine.quality.subject.PREFILL_CHUNK", 64)
    assert totals(score(Subject(model), corpus, 100, 50))["total_nll"] == pytest.approx(whole["total_nll"], rel=1e-5)
    rounded = totals(score(Subject(model, Settings(kv_dtype="bf16", gdn_state_fp16=True)), corpus, 100, 50))
    assert rounded["total_nll"] == pytest.approx(whole["total_nll"], rel=0.05)
    assert rounded["total_nll"] != whole["total_nll"]


def test_perplexity_of_certainty_and_of_despair() -> None:
    assert perplexity(0.0, 5) == 1.0
    assert perplexity(math.log(8192) * 3, 3) == pytest.approx(8192)
    assert perplexity(1e9, 1) == math.inf


def test_comparison_by_definition(small: Callable[[str], Small]) -> None:
    model = small("dense")
    first, second = Subject(model.artifact), Subject(model.convert("nano"))
    window = first.tokenizer.encode(TEXT)[:60]
    same = compare(first, first, [window])
    assert not same.divergence.any()
    assert same.agree.all()
    found = compare(first, second, [window[:40], window[40:]])
    expected = []
    for part in (window[:40], window[40:]):
        (_, p), (_, q) = next(first.log_probabilities(part)), next(second.log_probabilities(part))
        expected += [float((a.exp() * (a - b)).sum()) for a, b in zip(p.double(), q.double(), strict=True)]
    np.testing.assert_allclose(found.divergence, expected, atol=1e-9)
    assert found.divergence.mean() > 1e-3
    summary = found.summary()
    assert summary["positions"] == 60
    assert summary["kl_mean"] <= summary["kl_p99"] <= summary["kl_p99.9"] <= summary["kl_max"]


def test_summary_of_known_values() -> None:
    summary = Comparison(np.arange(1001) / 1000.0, np.arange(1001) < 900).summary()
    assert summary["kl_mean"] == pytest.approx(0.5)
    assert summary["kl_p99.9"] == pytest.approx(0.999)
    assert summary["top1_agreement"] == pytest.approx(900 / 1001)


def test_search_is_closer_than_absmax(small: Callable[[str], Small]) -> None:
    """The mixes are alike but for the encoder. Random weights suffice to see it."""
    model = small("dense")
    first = Subject(model.artifact)
    window = first.tokenizer.encode(TEXT)
    absmax, search = (compare(first, Subject(model.convert(name)), [window]) for name in ("nano", "nano_search"))
    assert search.summary()["kl_mean"] < absmax.summary()["kl_mean"]


def manifest(folder: Path) -> Path:
    """A corpus of three streams in two domains."""
    streams = []
    for name, domain, text in (("a", "one", TEXT), ("b", "one", TEXT[:50]), ("c", "two", TEXT[10:80])):
        (folder / f"{name}.txt").write_text(text)
        streams.append(
            {
                "id": name, "domain": domain, "path": f"{name}.txt", "bytes": len(text),
                "sha256": hashlib.sha256(text.encode()).hexdigest(), "licence": "none", "origin": "here",
            }
        )  # fmt: skip
    path = folder / "corpus.json"
    path.write_text(json.dumps({"name": "small-v1", "streams": streams}))
    return path


def test_command(small: Callable[[str], Small], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, corpus, output = small("dense"), manifest(tmp_path), tmp_path / "out"
    words = [str(model.artifact), "--corpus", str(corpus), "--context", "48", "--stride", "16", "--output", str(output)]
    assert main(words) == 0
    screen = capsys.readouterr()
    report = json.loads((output / "report.json").read_text())
    assert [path.name for path in output.iterdir()] == ["report.json"]
    subject = Subject(model.artifact)
    assert (report["schema"], report["metric"]) == (2, "perplexity")
    assert report["artifact"]["fingerprint"] == subject.fingerprint
    assert report["execution"] == {
        "device": "cpu", "context_tokens": 48, "stride_tokens": 16, "prefill_chunk_tokens": 1024,
        "score_tile_tokens": SCORE_TILE, "kv_dtype": "fp32", "gdn_state_fp16": False,
    }  # fmt: skip
    assert list(report["domains"]) == ["one", "two"]
    for stream in report["streams"]:
        assert sum(window["targets"] for window in stream["windows"]) == stream["scored_tokens"] == stream["tokens"] - 1
        assert sum(window["nll"] for window in stream["windows"]) == pytest.approx(stream["total_nll"])
    overall = report["overall"]
    assert overall["scored_tokens"] == sum(domain["scored_tokens"] for domain in report["domains"].values())
    assert overall["perplexity"] == pytest.approx(math.exp(overall["mean_nll"]))
    assert f"{overall['perplexity']:.6f}" in screen.out.splitlines()[5]
    assert screen.out.splitlines()[2].split() == ["domain", "tokens", "mean_nll", "ppl"]
    assert "small-v1 (full): 3 streams" in screen.err
    # A folder that has a report is not written to again.
    assert main(words) == ExitCode.CONFIGURATION
    assert "is not an empty folder" in capsys.readouterr().err
    assert main([*words[:-1], str(tmp_path / "quick"), "--quick"]) == 0
    assert "small-v1 (quick): 2 streams" in capsys.readouterr().err


def test_default_output(
    small: Callable[[str], Small], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "some text.txt"
    text.write_text(TEXT)
    monkeypatch.chdir(tmp_path)
    model = small("dense").artifact
    assert main([str(model), "--text", str(text), "--context", "64", "--stride", "32"]) == 0
    path = Path(capsys.readouterr().out.splitlines()[-1])
    fingerprint = Subject(model).fingerprint[:12]
    assert path.parts[:7] == ("profiles", "perplexity", "bf16", fingerprint, "fp32", "some_text", "text")
    assert path.is_file()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--context", "1"], "context 1, stride 2048; use a context of 2 or more"),
        (["--context", "8", "--stride", "8"], "context 8, stride 8"),
        (["--context", "8", "--stride", "0"], "context 8, stride 0"),
        (["--context", "9999"], "the model reads at most 512 tokens"),
        (["--device", "0"], "device '0' cannot measure perplexity in this version; use cpu"),
        (["--kv-dtype", "rk4v4"], "kv dtype 'rk4v4' cannot be measured on the CPU"),
        (["--quick"], "--quick goes with --corpus"),
    ],
)
def test_refusals(
    words: list[str],
    message: str,
    small: Callable[[str], Small],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = tmp_path / "text"
    text.write_text(TEXT)
    output = tmp_path / "out"
    code = main([str(small("dense").artifact), "--text", str(text), "--output", str(output), *words])
    assert code == ExitCode.CONFIGURATION
    assert message in capsys.readouterr().err
    assert not output.exists()


def test_a_corpus_is_what_its_manifest_pins(tmp_path: Path) -> None:
    path = manifest(tmp_path)
    (tmp_path / "b.txt").write_text("changed")
    with pytest.raises(ConfigurationError, match=r"b\.txt has the SHA-256 .*; corpus\.json pins"):
        read_corpus(path)
    assert [stream.id for stream in read_corpus(path, quick=True).streams] == ["a", "c"]
    for change, message in (
        ({"streams": []}, "has no streams"),
        ({"name": "../x"}, "cannot name a folder"),
        ({"more": 1}, "unknown field `more`"),
    ):
        path.write_text(json.dumps(json.loads(manifest(tmp_path).read_text()) | change))
        with pytest.raises(ConfigurationError, match=message):
            read_corpus(path)
    record = json.loads(manifest(tmp_path).read_text())
    record["streams"][0]["path"] = "../a.txt"
    path.write_text(json.dumps(record))
    with pytest.raises(ConfigurationError, match="is not a file beside it"):
        read_corpus(path)


def test_the_committed_corpus() -> None:
    corpus = read_corpus(ROOT / "etc" / "corpus" / "held-out.json")
    assert {stream.domain for stream in corpus.streams} == {"documentation", "reference", "code"}
    total = sum(len(stream.text.encode()) for stream in corpus.streams)
    assert 200_000 < total < 500_000
    licences = json.loads((ROOT / "etc" / "corpus" / "held-out.json").read_text())["streams"]
    assert {entry["licence"] for entry in licences} == {"Apache-2.0", "PSF-2.0"}


def test_compare_command(small: Callable[[str], Small], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = small("dense")
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    words = ["compare", str(model.artifact), str(model.convert("nano")), "--text", str(text), "--context", "50"]
    assert artifact_main([*words, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["positions"] == len(Subject(model.artifact).tokenizer.encode(TEXT))
    assert 0 < figures["kl_mean"] <= figures["kl_max"]
    assert artifact_main([*words, "--tokens", "20"]) == 0
    assert f"kl_p99.9 {'':<8}" in capsys.readouterr().out
    other = shutil.copytree(model.folder, tmp_path / "other")
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    tokenizer["added_tokens"][0]["content"] = "<|begin|>"
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    out = tmp_path / "other.ninfer"
    assert artifact_main(["convert", "--model", str(other), "--recipe", "bf16", "--out", str(out)]) == 0
    assert artifact_main(["compare", str(model.artifact), str(out), "--text", str(text)]) == ExitCode.CONFIGURATION
    assert "have different tokens and cannot be compared" in capsys.readouterr().err


def test_blocks() -> None:
    assert list(blocks(range(5), 2)) == [[0, 1], [2, 3]]
    assert list(blocks(range(5), 3)) == [[0, 1, 2], [3, 4]]
