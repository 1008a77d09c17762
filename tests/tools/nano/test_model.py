"""The training forward pass is the engine's forward pass, on the exported artifact of the same weights."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.artifact import Artifact
from engine.artifact.convert.pipeline import Request, convert
from engine.model import Batch, MtpLayer, Segment, TextModel
from tools.nano.config import MODELS
from tools.nano.model import Nano
from tools.nano.tokenizer import FOLDER
from tools.nano.weights import add_side_files, read_weights, write_weights

CPU = torch.device("cpu")
LENGTHS = [[70, 1, 121], [192]]
# Every kind of layer once or twice; the vocabulary is the tokenizer's.
LAYERS = ["linear_attention", "full_attention", "linear_attention"]


@dataclass(frozen=True)
class Pair:
    """A random training model and the engine's model of the artifact made from it."""

    training: Nano
    text: TextModel
    mtp: MtpLayer
    folder: Path


def small(family: str) -> dict[str, Any]:
    return {**MODELS[family], "num_hidden_layers": len(LAYERS), "layer_types": LAYERS}


@pytest.fixture(scope="module", params=["nano", "nano-moe"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    torch.manual_seed(11)
    config = small(request.param)
    training = Nano(config)
    with torch.no_grad():
        for name, parameter in training.named_parameters():
            if "norm" in name:  # at their initial values a mistaken kind of norm is invisible
                parameter.add_(0.3 * torch.randn_like(parameter))
            parameter.copy_(parameter.to(torch.bfloat16))
    folder = tmp_path_factory.mktemp(request.param)
    write_weights(folder / "model", config, training.state_dict())
    add_side_files(folder / "model", FOLDER)
    convert(Request(model=folder / "model", recipe="bf16", out=folder / "made.ninfer", components=("text", "mtp")))
    with Artifact.open(folder / "made.ninfer") as artifact:
        text = TextModel.load(artifact, artifact.text_config, device=CPU, dtype=torch.float32, token_count=8192)
        mtp = MtpLayer.load(artifact, text)
    return Pair(training, text, mtp, folder)


def tokens() -> torch.Tensor:
    return torch.randint(8192, (2, 192), generator=torch.Generator().manual_seed(3))


def documents() -> torch.Tensor:
    return torch.stack([torch.repeat_interleave(torch.arange(len(n)), torch.tensor(n)) for n in LENGTHS])


def served(pair: Pair, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Hidden vectors of the text model and of the aligned MTP pass, one document."""
    pages = list(range(4))
    positions = torch.arange(len(ids)).expand(3, -1)
    segments = [Segment(0, len(ids), 0, pages, 0)]
    with torch.inference_mode():
        pools = pair.text.new_pools(4, 1, kv_dtype=torch.float32, state_dtype=torch.float32)
        hidden = pair.text.forward(Batch(ids, positions, segments), pools)
        following = torch.cat((ids[1:], ids[:1]))
        drafting = pair.mtp.new_pools(4, kv_dtype=torch.float32)
        return hidden, pair.mtp.forward(Batch(following, positions, segments), hidden, drafting)


def distance(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours - theirs).norm() / theirs.norm())


def test_packed_rows_equal_the_engine(pair: Pair) -> None:
    ids, packing = tokens(), pair.training.pack(documents())
    with torch.no_grad():
        hidden = pair.training(ids, packing)
        logits = pair.training.logits(hidden)
        (drafted,) = pair.training.drafts(ids, hidden, packing, 1)
    for row, lengths in enumerate(LENGTHS):
        begin = 0
        for length in lengths:
            span = slice(begin, begin + length)
            theirs, theirs_drafted = served(pair, ids[row, span])
            assert distance(hidden[row, span], theirs) < 1e-4
            assert distance(logits[row, span], pair.text.logits(theirs)) < 1e-4
            if length > 1:  # the last column of a document has no following token
                assert distance(drafted[row, span][:-1], theirs_drafted[:-1]) < 1e-4
            begin += length


def test_whole_rows_need_no_mask(pair: Pair) -> None:
    ids = tokens()
    packing = pair.training.pack(torch.zeros_like(ids), whole_rows=True)
    assert packing.visible is None
    with torch.no_grad():
        hidden = pair.training(ids, packing)
        (drafted,) = pair.training.drafts(ids, hidden, packing, 1)
    theirs, theirs_drafted = served(pair, ids[0])
    assert distance(hidden[0], theirs) < 1e-4
    assert distance(drafted[0][:-1], theirs_drafted[:-1]) < 1e-4


def test_later_draft_steps_are_what_the_engine_drafts(pair: Pair) -> None:
    """Drafting from column t on with the tokens that the text really has gives columns t, t + 1, t + 2 of the steps."""
    ids, packing = tokens(), pair.training.pack(documents())
    with torch.no_grad():
        hidden = pair.training(ids, packing)
        steps = pair.training.drafts(ids, hidden, packing, 3)
    row = ids[1]
    for begin in (0, 63, 150):
        with torch.inference_mode():
            pools = pair.mtp.new_pools(4, kv_dtype=torch.float32)
            places = torch.arange(begin + 1)
            aligned = Batch(row[1 : begin + 2], places.expand(3, -1), [Segment(0, begin + 1, 0, [2, 0, 1], 0)])
            output = pair.mtp.forward(aligned, hidden[1, : begin + 1], pools)[-1:]
            assert distance(steps[0][1, begin], output[0]) < 1e-4
            for later in (1, 2):
                column = begin + later
                batch = Batch(
                    row[column + 1 : column + 2], torch.full((3, 1), column), [Segment(0, 1, column, [2, 0, 1], 0)]
                )
                output = pair.mtp.forward(batch, output, pools)
                assert distance(steps[later][1, column], output[0]) < 1e-4


def test_rows_must_be_whole_chunks(pair: Pair) -> None:
    with pytest.raises(ValueError, match="65 tokens"):
        pair.training.pack(torch.zeros(1, 65, dtype=torch.int64))


def test_weights_come_back(pair: Pair) -> None:
    write_weights(pair.folder / "parts", pair.training.config, pair.training.state_dict(), part_bytes=1_000_000)
    config, state = read_weights(pair.folder / "parts")
    assert config == pair.training.config
    assert state.keys() == pair.training.state_dict().keys()
    again = Nano(config)
    again.load_state_dict(state)
    for name, parameter in again.named_parameters():
        assert torch.equal(parameter, pair.training.get_parameter(name)), name
    sizes = [path.stat().st_size for path in (pair.folder / "parts").glob("*.safetensors")]
    largest = max(parameter.nbytes // 2 for parameter in again.parameters())
    assert len(sizes) > 2
    assert max(sizes) < max(1_000_000, largest) + 10_000


@pytest.mark.parametrize("family", MODELS)
def test_size(family: str) -> None:
    with torch.device("meta"):
        count = sum(parameter.numel() for parameter in Nano(MODELS[family]).parameters())
    assert 7_000_000 < count <= 9_000_000


def test_gradients_reach_every_parameter(pair: Pair) -> None:
    ids, packing = tokens(), pair.training.pack(documents())
    pair.training.zero_grad()
    hidden = pair.training(ids, packing)
    loss = pair.training.logits(hidden).square().mean()
    for step in pair.training.drafts(ids, hidden, packing, 2):
        loss = loss + pair.training.logits(step).square().mean()
    balance = pair.training.balance()
    if balance is not None:
        assert 0.5 < float(balance.detach()) < 4
        loss = loss + balance
    loss.backward()  # type: ignore[no-untyped-call]
    for name, parameter in pair.training.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


def test_transformers_agrees(pair: Pair) -> None:
    """A second oracle reads the very checkpoint folder that training leaves behind."""
    transformers = pytest.importorskip("transformers")
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        pair.folder / "model", dtype=torch.float32, output_loading_info=True
    )
    assert not any(report.values()), report
    ids = tokens()[1:]
    packing = pair.training.pack(torch.zeros_like(ids), whole_rows=True)
    with torch.no_grad():
        ours = pair.training.logits(pair.training(ids, packing))
        assert distance(ours, model(ids, use_cache=False).logits) < 1e-4
