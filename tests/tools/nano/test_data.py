"""Tasks and batches: answers are right, prompts are what a server would send, and rows keep documents apart."""

import json
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

from tools.nano.data.batches import Batches, Mixture, Targets, TokenBatch, pack_examples
from tools.nano.data.corpus import Prose, read_corpus
from tools.nano.data.example import Example, Reply, think
from tools.nano.data.prepare import split_of
from tools.nano.data.render import Renderer
from tools.nano.data.sources import plain_html
from tools.nano.data.tasks import EVALUATED, TASKS
from tools.nano.data.tasks.arithmetic import draw_problem, steps
from tools.nano.data.tasks.json_schema import matches
from tools.nano.data.tasks.long_arithmetic import columns
from tools.nano.data.tasks.lookup import plant
from tools.nano.data.tasks.tool_calls import calls, parse_call

SMALL = Mixture(tokens=2048, row=512, long_rows=(1024,), long_share=0.5)
Materials = tuple[Renderer, Prose]


def examples(name: str, prose: Prose, count: int) -> list[Example]:
    return [EVALUATED[name](Random(f"test {name} {item}"), prose) for item in range(count)]


@pytest.mark.parametrize("name", EVALUATED)
def test_reference_answers_pass_and_others_do_not(name: str, materials: Materials) -> None:
    found = examples(name, materials[1], 4 if "k" in name.rsplit("_", 1)[-1] else 25)
    for example in found:
        reference = example.reference
        assert example.task == name
        assert example.passes(reference), example.messages
        assert not example.passes(Reply(reference.reasoning, "Something else.")), example.messages
        assert not example.passes(Reply(reference.reasoning, reference.content, finished=False))
        silent = Reply("" if example.thinks else "Let me think.", reference.content)
        assert not example.passes(silent), "thinks when thinking is on, and only then"
    assert {example.thinks for example in found} == {True, False} or len(found) < 10


@pytest.mark.parametrize("name", EVALUATED)
def test_training_text_is_serving_text(name: str, materials: Materials) -> None:
    renderer, prose = materials
    for example in examples(name, prose, 3):
        prompt, rendered = renderer.prompt(example), renderer.render(example)
        ids = rendered.token_ids.tolist()
        assert ids[: len(prompt)] == prompt
        answered = ids[len(prompt) :]
        places = np.flatnonzero(rendered.target)
        assert rendered.target[len(prompt) : len(prompt) + answered.index(renderer._end) + 1].all()
        assert not rendered.target[len(prompt) - 1]
        assert places[-1] == len(prompt) + answered.index(renderer._end)
        output = renderer.frontend.output(example.thinks)
        deltas = [*output.push(answered[:-1]), *output.finish()]
        channels = {c: "".join(d.text for d in deltas if d.channel == c) for c in ("reasoning", "content")}
        assert channels["content"].strip() == example.reference.content.strip()
        assert channels["reasoning"].strip() == example.reference.reasoning
        turns = sum(message["role"] == "assistant" for message in example.messages)
        assert len(np.flatnonzero(np.diff(rendered.target.astype(int)) == 1)) == turns


def test_held_out_problems_are_not_trained() -> None:
    random = Random(1)
    trained = {draw_problem(random, "train") for _ in range(4000)}
    held_out = {draw_problem(random, "held-out") for _ in range(1000)}
    assert len(trained) > 2000
    assert len(held_out) > 300
    assert not trained & held_out


def test_worked_steps_are_right() -> None:
    assert steps(47, "+", 38) == "47 + 30 = 77. 77 + 8 = 85."
    assert columns(957, "+", 68) == (
        "7 + 8 = 15, write 5, carry 1; 5 + 6 + 1 = 12, write 2, carry 1; 9 + 0 + 1 = 10, write 0, carry 1; write 1."
        " So 957 + 68 = 1025."
    )
    assert columns(502, "-", 37).endswith("5 - 0 - 1 = 4. So 502 - 37 = 465.")


def test_efforts_think_in_growing_length() -> None:
    lengths = [len(think(effort, "ab", "abcd", "abcde")) for effort in ("none", "low", "medium", "xhigh")]
    assert lengths == sorted(set(lengths))
    assert lengths[0] == 0


def test_planting_keeps_text_and_statements() -> None:
    text = "First sentence. Second one! A third?\n\nAnd a last one."
    planted = plant(Random(3), text, ["The code of the red key is 5.", "The age of the old boat is 7."])
    for piece in ("First sentence.", "Second one!", "A third?", "And a last one.", "red key is 5.", "old boat is 7."):
        assert piece in planted
    assert len(planted) <= len(text) + 64


def test_json_checks() -> None:
    schema = {
        "properties": {"n": {"type": "integer"}, "c": {"type": "string", "enum": ["red"]}, "b": {"type": "boolean"}},
        "required": ["n"],
    }
    assert matches('{"n": 1, "c": "red", "b": true}', schema)
    for bad in (
        '{"n": 1.5}',
        '{"n": true}',
        "{}",
        '{"n": 1, "c": "blue"}',
        '{"n": 1, "x": 2}',
        '{"n": 1',
        "[1]",
        '{"n": 1, "b": 1}',
    ):
        assert not matches(bad, schema), bad


def test_call_checks() -> None:
    good = "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"
    assert parse_call(good) == ("f", {"a": "1"})
    assert calls("f", {"a": 1})(good)
    assert not calls("f", {"a": 2})(good)
    for bad in (good[:-1], good + "\nand", good.replace("\n1\n", "1"), good + "\n" + good, "f(a=1)"):
        assert parse_call(bad) is None, bad


def test_batches_depend_on_seed_and_number_alone(corpus: Path) -> None:
    one, two, other = (Batches(corpus, SMALL, seed=seed) for seed in (1, 1, 2))
    two[5]
    for number in range(4):
        assert torch.equal(one[number].token_ids, two[number].token_ids)
        assert not torch.equal(one[number].token_ids, other[number].token_ids)
    assert {one[number].whole_rows for number in range(8)} == {True, False}


def _check(batch: TokenBatch, targets: Targets, ahead: int, after: int) -> None:
    length = batch.token_ids.shape[1]
    ids, documents = batch.token_ids.flatten(), batch.documents.flatten()
    for place, label, weight in zip(
        *(part.tolist() for part in (targets.places, targets.labels, targets.weights)), strict=True
    ):
        assert place % length + ahead < length
        assert place % length >= after
        assert ids[place + ahead] == label
        assert documents[place - after] == documents[place] == documents[place + ahead]
        assert weight in {0.5, 1.0}


def test_targets_stay_inside_documents(corpus: Path) -> None:
    for number in range(4):
        batch = Batches(corpus, SMALL, seed=3)[number]
        _check(batch, batch.following, 1, 0)
        for step, targets in enumerate(batch.drafts, 1):
            _check(batch, targets, 2, step - 1)
            if step > 1:
                assert targets.places.amax() < batch.deep_rows * batch.token_ids.shape[1]
        assert len(batch.drafts) == (1 if batch.whole_rows else 3)
        assert len(batch.following.places) > 50


def test_free_text_has_its_share(corpus: Path) -> None:
    mixture = Mixture(tokens=16384, row=1024, long_share=0, text_share=0.4)
    batch = Batches(corpus, mixture, seed=1)[0]
    text = int((batch.following.weights == 0.5).sum())
    assert 0.3 < text / batch.token_ids.numel() < 0.5


def test_examples_are_packed_where_they_are_said_to_be(materials: Materials) -> None:
    renderer, prose = materials
    rendered = [renderer.render(example) for example in examples("chat", prose, 12)]
    batch, spans = pack_examples(rendered, 256)
    flat = batch.token_ids.flatten()
    for example, span in zip(rendered, spans, strict=True):
        assert flat[span].tolist() == example.token_ids.tolist()
        assert len(set(batch.documents.flatten()[span].tolist())) == 1
    assert len(batch.token_ids) > 1


def test_a_corpus_of_another_tokenizer_is_refused(corpus: Path) -> None:
    with pytest.raises(ValueError, match="another tokenizer"):
        read_corpus(corpus, "train", "0" * 64)


def test_text_of_pages() -> None:
    page = "<html><head><title>t</title></head><body><h1>A  b</h1><script>x()</script><p>One\ntwo<br>three</p></html>"
    assert plain_html(page).strip() == "A b\n\nOne two\nthree"


def test_few_documents_are_held_out() -> None:
    names = [split_of(f"package/{number}") for number in range(5000)]
    assert 50 < names.count("held-out") < 200


def test_shares_are_of_known_tasks() -> None:
    known: dict[str, Any] = dict(Mixture().tasks)
    assert known.keys() == TASKS.keys()
    assert json.dumps(known)
