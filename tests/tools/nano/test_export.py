"""Export of a checkpoint: artifact, master in parts, pin; and the evaluation of an artifact."""

import hashlib
import math
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch

from downloader.catalog import find, read_catalog
from engine.artifact import Artifact
from tests.tools.nano.test_model import small
from tools.nano import export
from tools.nano.config import MODELS
from tools.nano.data.corpus import read_corpus, tokenizer_hash
from tools.nano.evaluate import Lane, Served, draft, evaluate, generate, perplexity, read
from tools.nano.model import Nano
from tools.nano.tokenizer import FOLDER
from tools.nano.weights import write_weights

CATALOG = """[hub]
endpoint = "https://hub.example"

[models.nano]
path = "nano/old.ninfer"
bytes = 1
sha256 = "0"
format_version = 3

# the next one
[models.big]
repository = "a/b"
"""


def drawn(family: str, folder: Path) -> Nano:
    """A random model with bfloat16 weights, and its checkpoint."""
    torch.manual_seed(4)
    model = Nano(small(family))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.to(torch.bfloat16))
    write_weights(folder, model.config, model.state_dict())
    return model


@pytest.mark.parametrize("family", MODELS)
def test_export(family: str, tmp_path: Path) -> None:
    model = drawn(family, tmp_path / "checkpoint")
    etc, catalog = tmp_path / "etc" / "nano", tmp_path / "etc" / "models.toml"
    etc.mkdir(parents=True)
    catalog.write_text(CATALOG)
    made = export.export(family, tmp_path / "checkpoint", etc=etc, catalog=catalog)
    digests = digests_in(etc)

    parts = export.artifact_files(made["master"])
    assert len(parts) > 1 or made["master"].stat().st_size <= export.PART_BYTES
    assert all(part.stat().st_size <= export.PART_BYTES for part in parts)
    with Artifact.open(made["master"]) as master:
        head = master.values("text/output_head")
        assert head.dtype == ml_dtypes.bfloat16
        wanted = model.lm_head.weight.detach().numpy()
        assert np.array_equal(head.astype(np.float32), wanted)
    with Artifact.open(made["artifact"]) as artifact:
        assert artifact.name == family
        close = artifact.values("text/output_head").astype(np.float32)
    assert 0 < np.linalg.norm(close - wanted) / np.linalg.norm(wanted) < 0.05
    assert made["artifact"].stat().st_size < sum(part.stat().st_size for part in parts) / 2

    text = catalog.read_text()
    assert "# the next one\n[models.big]" in text
    assert text.count(f"[models.{family}]") == 1
    pinned = find(read_catalog(_without_big(catalog), {}), family)
    assert (pinned.bytes, pinned.sha256) == (made["artifact"].stat().st_size, digests[made["artifact"]])

    export.export(family, tmp_path / "checkpoint", etc=etc, catalog=catalog)
    assert digests == digests_in(etc), "the same weights give the same bytes"
    assert catalog.read_text() == text


def digests_in(folder: Path) -> dict[Path, str]:
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.rglob("*.ninfer*")}


def _without_big(catalog: Path) -> Path:
    path = catalog.with_name("embedded.toml")
    text = catalog.read_text().partition("# the next one")[0]
    path.write_text(text.replace("nano/old.ninfer", "nano/nano.ninfer").replace('"0"', f'"{"0" * 64}"'))
    return path


def test_pins_of_other_models_are_left_alone() -> None:
    with pytest.raises(ValueError, match=r"models\.big is not an embedded model"):
        export.pin(CATALOG, "big", FOLDER / "nano.ninfer", FOLDER.parent)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> tuple[Nano, Served]:
    folder = tmp_path_factory.mktemp("served")
    model = drawn("nano", folder / "checkpoint")
    (folder / "models.toml").write_text(CATALOG)
    (folder / "nano").mkdir()
    made = export.export("nano", folder / "checkpoint", etc=folder / "nano", catalog=folder / "models.toml")
    return model, Served.load(made["master"], torch.device("cpu"), torch.float32)


def packed(model: Nano, ids: list[int]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Hidden vectors [L, H] of one document and of its draft steps, from the training form."""
    length = -(-len(ids) // 64) * 64
    tokens = torch.tensor([ids + [0] * (length - len(ids))])
    documents = torch.tensor([[0] * len(ids) + [1] * (length - len(ids))])
    with torch.no_grad():
        packing = model.pack(documents)
        hidden = model(tokens, packing)
        return hidden[0], [step[0] for step in model.drafts(tokens, hidden, packing, 3)]


def test_lanes_generate_what_the_training_form_predicts(served: tuple[Nano, Served]) -> None:
    model, engine = served
    prompts = [[5, 900, 17, 33, 8000], list(range(40, 175)), [1]]
    with torch.inference_mode():
        lanes = generate(engine, prompts, [6, 3, 9])
    for prompt, lane, limit in zip(prompts, lanes, (6, 3, 9), strict=True):
        assert len(lane.ids) - len(prompt) == limit or lane.ids[-1] in engine.frontend.stop_ids
        hidden, _ = packed(model, lane.ids)
        scores = model.logits(hidden).detach()
        for place in range(len(prompt), len(lane.ids)):
            assert scores[place - 1, lane.ids[place]] > scores[place - 1].amax() - 1e-3
        assert len(torch.cat(lane.hidden)) == len(lane.ids) - 1


@pytest.mark.parametrize("wrong", [None, 1, 2])
def test_drafts_are_counted_in_rounds(served: tuple[Nano, Served], wrong: int | None) -> None:
    """An answer that follows every draft of the training form is accepted whole; one odd token costs its round."""
    model, engine = served
    ids, prompt = [5, 900, 17, 33, 8000, 77], 5  # the sixth is the first of the answer
    for number in range(3):
        column = len(ids) - 2
        for place in range(3):
            _, steps = packed(model, ids)
            drafted = int(model.logits(steps[place][column + place]).argmax())
            if number == 1 and place == wrong:
                ids.append((drafted + 1) % 8000)
                break
            ids.append(drafted)
    hidden, _ = packed(model, ids)
    lane = Lane(ids, 0, 0, list(range(2)), [hidden[: len(ids) - 1]], done=True)
    with torch.inference_mode():
        found = draft(engine, lane, prompt)
    if wrong is None:
        # Round by round the model itself adds a token behind three drafts, which here is the next round's first draft.
        assert found.accepted[0] >= 1
        assert found.tried[0] >= found.tried[1] >= found.tried[2]
    assert found.accepted == _count(model, ids, prompt)


def _count(model: Nano, ids: list[int], prompt: int) -> list[int]:
    """The same count, with every column's drafts from the training form."""
    accepted, column = [0, 0, 0], prompt - 1
    while column + 2 < len(ids):
        agreed = 0
        for place in range(min(3, len(ids) - column - 2)):
            _, steps = packed(model, ids[: column + 2 + place])
            if int(model.logits(steps[place][column + place]).argmax()) != ids[column + 2 + place]:
                break
            accepted[place] += 1
            agreed += 1
        column += agreed + 1
    return accepted


def test_perplexity_is_that_of_the_training_form(served: tuple[Nano, Served], corpus: Path) -> None:
    model, engine = served
    text = read_corpus(corpus, "held-out", tokenizer_hash(FOLDER))
    with torch.inference_mode():
        ours = perplexity(engine, text, 2048)
    ids = text.tokens[:2048].astype("int64").tolist()
    hidden, _ = packed(model, ids)
    scores = model.logits(hidden[:-1]).detach()
    theirs = math.exp(float(torch.nn.functional.cross_entropy(scores, torch.tensor(ids[1:]))))
    assert abs(ours / theirs - 1) < 1e-3


def test_replies_are_read_as_a_client_reads_them(served: tuple[Nano, Served]) -> None:
    _, engine = served
    ids = [9, *engine.frontend.encode("A thought.\n</think>\n\nAn answer."), engine.frontend.stop_ids[0]]
    reply = read(engine, Lane(ids, 0, 0, [0]), 1, thinking=True)
    assert (reply.reasoning.strip(), reply.content, reply.finished) == ("A thought.", "An answer.", True)
    assert not read(engine, Lane(ids[:-1], 0, 0, [0]), 1, thinking=True).finished


def test_evaluation_reports_every_task(corpus: Path, tmp_path: Path) -> None:
    drawn("nano-moe", tmp_path / "checkpoint")
    (tmp_path / "models.toml").write_text(CATALOG)
    (tmp_path / "nano").mkdir()
    made = export.export("nano-moe", tmp_path / "checkpoint", etc=tmp_path / "nano", catalog=tmp_path / "models.toml")
    report = evaluate(made["artifact"], corpus, tasks=("chat", "arithmetic"), items=2, lanes=2, text_tokens=512)
    assert report["tasks"].keys() == {"chat", "arithmetic"}
    assert all(figures["passed"] == 0 for figures in report["tasks"].values()), "a random model knows nothing"
    assert len(report["accepted"]) == 3
    assert report["perplexity"] > 1000
