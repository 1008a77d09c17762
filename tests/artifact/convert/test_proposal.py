"""The proposal head: which tokens it has, and that its rows are those of the output head (spec/artifact.md §5.3)."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from engine.artifact import Artifact
from engine.artifact.convert.cli import add_arguments, run
from engine.artifact.convert.pipeline import ProposalRequest, Request, convert
from engine.artifact.convert.proposal import rank_tokens, read_ranking
from engine.artifact.convert.sources import CheckpointError
from engine.artifact.grouped import encode_grouped
from engine.artifact.inventory import expected_parameters
from engine.artifact.verify import verify
from engine.exits import ArtifactError, ConfigurationError
from tests.artifact.convert.checkpoints import write_checkpoint


@given(
    counts=st.lists(st.integers(0, 5), min_size=1, max_size=30),
    padding=st.integers(0, 3),
    data=st.data(),
)
def test_ranking(counts: list[int], padding: int, data: st.DataObject) -> None:
    n = len(counts)
    rows = data.draw(st.integers(1, n))
    forced = data.draw(st.sets(st.integers(0, n - 1), max_size=n))
    # Tokens that do not exist would win by their counts.
    ids = rank_tokens(np.array(counts + [100] * padding, np.int64), n, forced, rows).tolist()
    assert len(set(ids)) == len(ids) == rows
    assert set(ids) <= set(range(n))
    assert [counts[i] for i in ids] == sorted((counts[i] for i in ids), reverse=True)
    if len(forced) >= rows:
        assert ids == sorted(forced, key=lambda i: (-counts[i], i))[:rows]
        return
    assert forced <= set(ids)
    free = [i for i in sorted(range(n), key=lambda i: (-counts[i], i)) if i not in forced][: rows - len(forced)]
    assert sorted(ids, key=lambda i: -counts[i]) == ids
    assert set(ids) - forced == set(free)
    # Of equal counts, ranked tokens come before forced ones, each by id.
    assert ids == sorted(ids, key=lambda i: (-counts[i], i in forced, i))


def test_a_head_is_converted_by_ranking_and_by_the_ids_of_another_artifact(tmp_path: Path) -> None:
    tensors = write_checkpoint(tmp_path / "model")
    counts = np.random.default_rng(4).integers(0, 50, (2, 320))
    ranking = tmp_path / "ranking.bin"
    ranking.write_bytes(counts.astype("<i8").tobytes())
    words = ["--model", str(tmp_path / "model"), "--recipe", "nano", "--components", "text,mtp", "--proposal"]
    words += ["--rows-per-chunk", "7"]
    first, second = tmp_path / "a.ninfer", tmp_path / "b.ninfer"
    command(*words, "--ranking", str(ranking), "--proposal-rows", "40", "--out", str(first))
    command(*words, "--proposal-ids", str(first), "--out", str(second))
    expected = rank_tokens(counts[0], 259, {256, 257}, 40)
    rows = tensors["lm_head.weight"].float().numpy()[expected]
    for path in (first, second):
        with Artifact.open(path) as artifact:
            np.testing.assert_array_equal(artifact.values("proposal/token_ids"), expected)
            (part,) = artifact.encoded("proposal/head")
            planes, stored = encode_grouped("q4_g64_fp16", rows), part.tensor.grouped_rows(0, 40)
            np.testing.assert_array_equal(stored.base, planes.base)
            np.testing.assert_array_equal(stored.scales.view(np.uint16), planes.scales.view(np.uint16))
            assert [use.input for use in artifact.uses("proposal/head")] == ["mtp/final_hidden"]
            assert artifact.directory.components["text"].proposal.rows == 40  # type: ignore[union-attr]
            report = verify(artifact, inventory=expected_parameters(artifact.directory, artifact.text_config))
            assert report.good, report.problems
    with Artifact.open(first) as artifact:
        assert artifact.directory.provenance["ranking"] == str(ranking)


def command(*words: str) -> None:
    import argparse

    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert run(parser.parse_args(words), Console(quiet=True)) == 0


def test_refusals(tmp_path: Path) -> None:
    model, out = tmp_path / "model", tmp_path / "out.ninfer"
    write_checkpoint(model)
    ranking = tmp_path / "ranking.bin"
    ranking.write_bytes(bytes(8 * 320))
    both: dict[str, Any] = {"components": ("text", "mtp")}

    def make(proposal: ProposalRequest, **settings: Any) -> None:
        convert(Request(model=model, recipe="bf16", out=out, proposal=proposal, **settings))

    with pytest.raises(ConfigurationError, match="add mtp to the components"):
        make(ProposalRequest(ranking=ranking))
    with pytest.raises(ConfigurationError, match="needs either --ranking FILE or --proposal-ids"):
        make(ProposalRequest(), **both)
    with pytest.raises(ConfigurationError, match="131072 rows cannot be chosen from 259 tokens"):
        make(ProposalRequest(ranking=ranking), **both)
    convert(Request(model=model, recipe="bf16", out=tmp_path / "none.ninfer"))
    with pytest.raises(ArtifactError, match="has no parameter 'proposal/token_ids'"):
        make(ProposalRequest(ids_from=tmp_path / "none.ninfer"), **both)
    for words in (
        ["--ranking", "x"],
        ["--proposal-rows", "5"],
        ["--proposal", "--proposal-ids", "x", "--proposal-rows", "5"],
    ):
        with pytest.raises(ConfigurationError, match=r"(goes|not go) with"):
            command("--model", str(model), "--recipe", "bf16", "--out", str(out), *words)
    for content, message in ((bytes(9), "9 bytes, which are not rows"), (b"", "0 bytes")):
        (tmp_path / "bad").write_bytes(content)
        with pytest.raises(CheckpointError, match=message):
            read_ranking(tmp_path / "bad", 320)
    (tmp_path / "bad").write_bytes(np.array([3, -1], "<i8").tobytes())
    with pytest.raises(CheckpointError, match="count of token 1 is negative"):
        read_ranking(tmp_path / "bad", 2)
    assert not out.exists()
