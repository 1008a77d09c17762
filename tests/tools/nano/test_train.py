"""Training: it learns, it follows its clock, and it goes on where it stopped."""

import itertools
import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from tests.tools.nano.tiny import SMALLEST, TINY
from tools.nano.checkup import Exam, check_up, make_exam
from tools.nano.config import MODELS, NANO_MOE
from tools.nano.data.batches import Batches, Mixture, open_held_out, pack_examples
from tools.nano.data.example import Example, answer, equals, question
from tools.nano.data.words import NOUNS
from tools.nano.losses import losses
from tools.nano.model import Nano
from tools.nano.optimizer import DECAY_FROM, factor, is_matrix, make_optimizers, set_rates
from tools.nano.train import Settings, train
from tools.nano.weights import read_weights

QUICK = Mixture(tokens=256, row=128, long_rows=(), text_share=0.2, depth=2, tasks=(("chat", 1.0),))


def settings(corpus: Path, out: Path, **changes: Any) -> Settings:
    return replace(Settings(config=SMALLEST, out=out, corpus=corpus, mixture=QUICK, steps=8, exam_count=0), **changes)


def lines(out: Path, event: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return [line for line in found if line["event"] == event]


def test_the_rate_rises_stays_and_falls_to_nothing() -> None:
    factors = [factor(number / 100) for number in range(101)]
    assert factors[0] == 0
    assert factors[2:61] == [1.0] * 59
    assert all(a > b for a, b in itertools.pairwise(factors[60:]))
    assert factors[100] == 0
    assert factor(1.5) == 0
    assert DECAY_FROM == 0.6


@pytest.mark.parametrize("family", MODELS)
def test_every_parameter_has_one_optimizer(family: str) -> None:
    model = Nano({**TINY, **({} if family == "nano" else moe())})
    counts: dict[int, int] = {}
    for optimizer in make_optimizers(model):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                counts[id(parameter)] = counts.get(id(parameter), 0) + 1
    assert counts == {id(parameter): 1 for parameter in model.parameters()}
    chosen = {name for name, parameter in model.named_parameters() if is_matrix(name, parameter)}
    assert "model.layers.3.self_attn.q_proj.weight" in chosen
    assert not any(
        word in name for name in chosen for word in ("norm", "embed", "lm_head", "conv", "in_proj_a", "mlp.gate.")
    )


def moe() -> dict[str, Any]:
    keys = ("architectures", "model_type", "num_experts", "num_experts_per_tok", "moe_intermediate_size")
    return {key: NANO_MOE[key] for key in (*keys, "shared_expert_intermediate_size")}


@pytest.mark.parametrize("family", MODELS)
def test_the_loss_falls(corpus: Path, family: str) -> None:
    torch.manual_seed(2)
    model = Nano({**SMALLEST, **({} if family == "nano" else moe())})
    batch = Batches(corpus, QUICK, seed=1)[0]
    optimizers = make_optimizers(model)
    seen = []
    for _ in range(12):
        found = losses(model, batch)
        seen.append([float(found.following.detach()), *(float(draft.detach()) for draft in found.drafts)])
        found.total.backward()  # type: ignore[no-untyped-call]
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    assert len(seen[0]) == 3
    assert all(after < 0.85 * before for before, after in zip(seen[0], seen[-1], strict=True)), seen


def test_a_stopped_run_goes_on_as_if_nothing_had_happened(corpus: Path, tmp_path: Path) -> None:
    train(settings(corpus, tmp_path / "whole"))
    # A step budget of 8 that ends after 3: the schedule is that of 8 throughout.
    from tools.nano.train import Training

    half = settings(corpus, tmp_path / "parts")
    half.out.mkdir()
    first = Training(half)
    batches = Batches(corpus, QUICK, seed=1)
    for number in range(3):
        first.update(batches[number])
    first.save()
    train(half)
    assert lines(half.out, "start")[0]["resumed"] is True
    whole, parts = (read_weights(tmp_path / name / "checkpoint")[1] for name in ("whole", "parts"))
    assert whole.keys() == parts.keys()
    for name in whole:
        assert torch.equal(whole[name], parts[name]), name
    with pytest.raises(ValueError, match="another model or seed"):
        train(settings(corpus, tmp_path / "parts", seed=2))


def test_a_budget_of_time_ends_annealed(corpus: Path, tmp_path: Path) -> None:
    report = train(
        settings(corpus, tmp_path, steps=None, minutes=0.05, exam_count=2, exam_tasks=("chat",), save_seconds=1)
    )
    (end,) = lines(tmp_path, "end")
    assert 3.0 <= end["seconds"] < 10
    assert lines(tmp_path, "step")[-1]["progress"] >= 1
    assert report["perplexity"] > 1
    assert set(report["exact"]) == {"chat"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint", "log.jsonl", "resume.pt"]
    assert {path.suffix for path in (tmp_path / "checkpoint").iterdir()} == {".json", ".safetensors"}


def test_either_a_time_or_a_number_of_steps(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="either minutes or steps"):
        train(settings(corpus, tmp_path, minutes=1.0))


def test_a_run_can_start_from_weights(corpus: Path, tmp_path: Path) -> None:
    train(settings(corpus, tmp_path / "first", steps=2))
    train(settings(corpus, tmp_path / "second", steps=1, initial=tmp_path / "first" / "checkpoint"))
    first, second = (read_weights(tmp_path / name / "checkpoint")[1] for name in ("first", "second"))
    # The first step of a warm-up has rate 0, so the weights are still those that were read.
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_a_small_model_learns_to_talk(corpus: Path, tmp_path: Path) -> None:
    """Two minutes on one core: answers it has seen before are given exactly, and drafts agree with them."""
    tasks = (("chat", 1.0), ("arithmetic", 1.0))
    mixture = Mixture(tokens=1024, row=256, long_rows=(), text_share=0.0, depth=2, tasks=tasks)
    report = train(
        settings(corpus, tmp_path, config=TINY, mixture=mixture, steps=250, exam_count=40, exam_tasks=("chat",))
    )
    found = lines(tmp_path, "step")
    assert found[-1]["loss"] < 0.3 * found[0]["loss"]
    assert report["exact"]["chat"] >= 0.75
    assert report["accepted"]["chat"][0] > 0.9


def copied(random: Random, *, held_out: bool) -> Example:
    """Three words of sixteen, to be copied; every eighth choice or so is held out."""
    while True:
        a, b, c = random.choices(range(16), k=3)
        if ((10 * a + 8 * b + 7 * c) % 8 == 0) == held_out:
            break
    text = " ".join(NOUNS[number] for number in (a, b, c))
    return Example(
        task="copying", messages=[*question(f"Copy this: {text}"), answer(text)], effort="none", check=equals(text)
    )


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_a_small_model_learns_to_copy_what_it_has_not_seen(corpus: Path) -> None:
    """A minute on one core. Copying cannot be learned by heart: the words must be found again in the question."""
    renderer, _ = open_held_out(corpus)
    torch.manual_seed(1)
    model, random, steps = Nano(TINY), Random("train"), 120
    optimizers = make_optimizers(model)
    for step in range(steps):
        batch, _ = pack_examples([renderer.render(copied(random, held_out=False)) for _ in range(48)], 256)
        set_rates(optimizers, step / steps)
        losses(model, batch).total.backward()  # type: ignore[no-untyped-call]
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    random = Random("held-out")
    unseen = pack_examples([renderer.render(copied(random, held_out=True)) for _ in range(48)], 256)
    text = Batches(corpus, QUICK, seed=1)[0]
    report = check_up(model, Exam({"copying": unseen}, text), torch.device("cpu"), None)
    assert report["exact"]["copying"] >= 0.9
    assert report["accepted"]["copying"][0] > 0.9


def test_a_checkup_sees_what_a_model_knows(corpus: Path) -> None:
    """On the batch it was driven into, a model is exact; a fresh one is not."""
    torch.manual_seed(2)
    model = Nano(SMALLEST)
    exam = make_exam(corpus, count=2, tasks=("chat",), row=256)
    before = check_up(model, exam, torch.device("cpu"), None)
    assert before["exact"]["chat"] == 0
    batch, _ = exam.tasks["chat"]
    optimizers = make_optimizers(model)
    for _ in range(30):
        losses(model, batch).total.backward()  # type: ignore[no-untyped-call]
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    after = check_up(model, exam, torch.device("cpu"), None)
    assert after["exact"]["chat"] == 1
    assert after["accepted"]["chat"][0] > 0.8
