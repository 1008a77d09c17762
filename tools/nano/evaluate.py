"""Measures an artifact of an embedded model: `python -m tools.nano.evaluate ARTIFACT --out FILE`.

Answers are generated greedily by `engine.model` and read through the front end, as a server would; items come from a
seed that training never uses. Also measured: perplexity of held-out text, and how many drafts of the MTP layer agree
with what the model then says, in rounds of three, by place of the draft.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch.nn import functional

from engine.artifact import Artifact
from engine.model import Batch, MtpLayer, Pools, Segment, TextModel
from engine.text import Frontend
from tools.nano.data.corpus import Corpus, Prose, read_corpus, tokenizer_hash
from tools.nano.data.example import Example, Maker, Reply
from tools.nano.data.prepare import CORPUS
from tools.nano.data.render import Renderer
from tools.nano.data.tasks import EVALUATED
from tools.nano.tokenizer import FOLDER

SEED = 90210
DRAFTS = 3
PAGE = 64
CHUNK = 512
WINDOW = 2048


@dataclass(frozen=True)
class Served:
    """An artifact, loaded."""

    text: TextModel
    mtp: MtpLayer | None
    frontend: Frontend

    @classmethod
    def load(cls, path: Path, device: torch.device, dtype: torch.dtype) -> "Served":
        """Load text model, MTP layer if the artifact has one, and front end."""
        with Artifact.open(path) as artifact:
            frontend = Frontend.load(artifact)
            text = TextModel.load(
                artifact, artifact.text_config, device=device, dtype=dtype, token_count=frontend.token_count
            )
            has_mtp = "mtp/final_norm" in artifact.parameters()
            return cls(text, MtpLayer.load(artifact, text) if has_mtp else None, frontend)


@dataclass
class Lane:
    """One answer being generated: ids so far, and the hidden vectors behind all but the last of them."""

    ids: list[int]
    limit: int
    slot: int
    pages: list[int]
    hidden: list[torch.Tensor] = field(default_factory=list)
    done: bool = False


@dataclass
class Drafting:
    """Rounds of drafts: how often each place was tried, and accepted together with all before it."""

    tried: list[int] = field(default_factory=lambda: [0] * DRAFTS)
    accepted: list[int] = field(default_factory=lambda: [0] * DRAFTS)

    def add(self, other: "Drafting") -> None:
        """Count the rounds of `other` too."""
        for place in range(DRAFTS):
            self.tried[place] += other.tried[place]
            self.accepted[place] += other.accepted[place]

    @property
    def rates(self) -> list[float]:
        """Acceptance by place."""
        return [round(a / t, 4) if t else 0.0 for a, t in zip(self.accepted, self.tried, strict=True)]


def generate(served: Served, prompts: Sequence[Sequence[int]], limits: Sequence[int]) -> list[Lane]:
    """Greedy answers to several prompts, decoded side by side; each ends with a stop id or at its limit."""
    text = served.text
    sizes = [-(-(len(prompt) + limit) // PAGE) for prompt, limit in zip(prompts, limits, strict=True)]
    pools = text.new_pools(sum(sizes), len(prompts), kv_dtype=text.dtype, state_dtype=torch.float32)
    lanes, page = [], 0
    for slot, (prompt, limit, size) in enumerate(zip(prompts, limits, sizes, strict=True)):
        lane = Lane(list(prompt), limit, slot, list(range(page, page + size)))
        page += size
        lanes.append(lane)
        for begin in range(0, len(prompt), CHUNK):
            _forward(text, pools, [(lane, begin, min(begin + CHUNK, len(prompt)))])
        _choose(served, [lane])
    while active := [lane for lane in lanes if not lane.done]:
        _forward(text, pools, [(lane, len(lane.ids) - 1, len(lane.ids)) for lane in active])
        _choose(served, active)
    return lanes


def _forward(text: TextModel, pools: Pools, parts: Sequence[tuple[Lane, int, int]]) -> None:
    ids: list[int] = []
    positions: list[int] = []
    segments = []
    for lane, begin, end in parts:
        segments.append(Segment(len(ids), len(ids) + end - begin, begin, lane.pages, lane.slot))
        ids += lane.ids[begin:end]
        positions += range(begin, end)
    batch = Batch(
        torch.tensor(ids, device=text.device), torch.tensor(positions, device=text.device).expand(3, -1), segments
    )
    hidden = text.forward(batch, pools)
    for (lane, _, _), segment in zip(parts, segments, strict=True):
        lane.hidden.append(hidden[segment.begin : segment.end])


def _choose(served: Served, lanes: Sequence[Lane]) -> None:
    last = torch.stack([lane.hidden[-1][-1] for lane in lanes])
    for lane, token in zip(lanes, served.text.logits(last).argmax(-1).tolist(), strict=True):
        lane.ids.append(token)
        lane.limit -= 1
        lane.done = token in served.frontend.stop_ids or lane.limit == 0


def draft(served: Served, lane: Lane, prompt: int) -> Drafting:
    """Replay the answer of `lane` in speculative rounds: the MTP layer drafts, what the model said verifies."""
    assert served.mtp is not None
    text, mtp, ids, found = served.text, served.mtp, lane.ids, Drafting()
    hidden = torch.cat(lane.hidden)
    pools = mtp.new_pools(len(lane.pages), kv_dtype=text.dtype)
    pages = list(range(len(lane.pages)))

    def run(tokens: Sequence[int], vectors: torch.Tensor, begin: int) -> torch.Tensor:
        places = torch.arange(begin, begin + len(tokens), device=text.device).expand(3, -1)
        batch = Batch(torch.tensor(tokens, device=text.device), places, [Segment(0, len(tokens), begin, pages, 0)])
        return mtp.forward(batch, vectors, pools)[-1:]

    done, column = 0, prompt - 1
    while column + 2 < len(ids):
        for begin in range(done, column + 1, CHUNK):
            end = min(begin + CHUNK, column + 1)
            output = run(ids[begin + 1 : end + 1], hidden[begin:end], begin)
        done, agreed = column + 1, 0
        for place in range(min(DRAFTS, len(ids) - column - 2)):
            drafted = int(text.logits(output).argmax())
            found.tried[place] += 1
            if drafted != ids[column + 2 + place]:
                # Later places of this round count as tried and lost.
                for later in range(place + 1, min(DRAFTS, len(ids) - column - 2)):
                    found.tried[later] += 1
                break
            found.accepted[place] += 1
            agreed += 1
            if place + 1 < DRAFTS:
                output = run([drafted], output, column + 1 + place)
        column += agreed + 1
    return found


def read(served: Served, lane: Lane, prompt: int, thinking: bool) -> Reply:
    """The answer as a client sees it."""
    output = served.frontend.output(thinking)
    deltas = [*output.push(lane.ids[prompt:]), *output.finish()]
    channels = {
        channel: "".join(delta.text for delta in deltas if delta.channel == channel)
        for channel in ("reasoning", "content")
    }
    return Reply(**channels, finished=lane.ids[-1] in served.frontend.stop_ids)


def evaluate_task(
    served: Served, renderer: Renderer, prose: Prose, make: Maker, name: str, *, items: int, lanes: int
) -> tuple[dict[str, Any], Drafting, list[tuple[Example, Reply]]]:
    """Figures of one task, its drafts, and the items that failed."""
    examples = [make(Random(f"held-out {SEED} {name} {item}"), prose) for item in range(items)]
    passed = exact = tokens = 0
    drafting = Drafting()
    failed = []
    begun = time.monotonic()
    for begin in range(0, items, lanes):
        group = examples[begin : begin + lanes]
        prompts = [renderer.prompt(example) for example in group]
        limits = [len(renderer.frontend.encode(e.reference.reasoning + e.reference.content)) * 2 + 32 for e in group]
        for example, prompt, lane in zip(group, prompts, generate(served, prompts, limits), strict=True):
            reply = read(served, lane, len(prompt), example.thinks)
            good = example.passes(reply)
            passed += good
            exact += reply.content.strip() == example.reference.content.strip()
            tokens += len(lane.ids) - len(prompt)
            if not good:
                failed.append((example, reply))
            if served.mtp is not None:
                drafting.add(draft(served, lane, len(prompt)))
    figures = {
        "items": items,
        "passed": round(passed / items, 4),
        "exact": round(exact / items, 4),
        "tokens": tokens,
        "accepted": drafting.rates,
        "seconds": round(time.monotonic() - begun, 1),
    }
    return figures, drafting, failed


def perplexity(served: Served, corpus: Corpus, tokens: int) -> float:
    """Of the first `tokens` tokens of held-out text, in windows of their own."""
    text, total, count = served.text, 0.0, 0
    for begin in range(0, min(tokens, len(corpus.tokens)), WINDOW):
        window = torch.from_numpy(corpus.tokens[begin : begin + WINDOW].astype("int64")).to(text.device)
        pages = -(-len(window) // PAGE)
        pools = text.new_pools(pages, 1, kv_dtype=text.dtype, state_dtype=torch.float32)
        places = torch.arange(len(window), device=text.device).expand(3, -1)
        hidden = text.forward(Batch(window, places, [Segment(0, len(window), 0, list(range(pages)), 0)]), pools)
        total += float(functional.cross_entropy(text.logits(hidden[:-1]), window[1:], reduction="sum"))
        count += len(window) - 1
    return math.exp(total / count)


def evaluate(
    path: Path,
    corpus_folder: Path,
    *,
    tasks: Sequence[str],
    items: int = 50,
    lanes: int = 8,
    text_tokens: int = 65536,
    device: str = "cpu",
    show: int = 0,
) -> dict[str, Any]:
    """Evaluate the artifact at `path`; `show` failures a task are printed."""
    with torch.inference_mode():
        served = Served.load(path, torch.device(device), torch.float32 if device == "cpu" else torch.bfloat16)
        corpus = read_corpus(corpus_folder, "held-out", tokenizer_hash(FOLDER))
        renderer, prose = Renderer(served.frontend), Prose(corpus, served.frontend, "held-out")
        report: dict[str, Any] = {"artifact": path.name, "seed": SEED, "tasks": {}}
        drafting = Drafting()
        for name in tasks:
            figures, drafts, failed = evaluate_task(
                served, renderer, prose, EVALUATED[name], name, items=items, lanes=lanes
            )
            report["tasks"][name] = figures
            drafting.add(drafts)
            print(f"{name:16} {figures}", flush=True)
            for example, reply in failed[:show]:
                print(f"  wanted {example.reference}\n  got    {reply}")
        report["accepted"] = drafting.rates
        if text_tokens:
            report["perplexity"] = round(perplexity(served, corpus, text_tokens), 4)
    return report


def main(words: list[str] | None = None) -> int:
    """Evaluate one artifact."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--corpus", type=Path, default=CORPUS)
    parser.add_argument("--tasks", default=",".join(EVALUATED))
    parser.add_argument("--items", type=int, default=50)
    parser.add_argument("--lanes", type=int, default=8)
    parser.add_argument("--text-tokens", type=int, default=65536)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--show", type=int, default=0, metavar="N", help="print N failures a task")
    parser.add_argument("--out", type=Path, default=None, help="write the report as JSON")
    args = parser.parse_args(words)
    report = evaluate(
        args.artifact,
        args.corpus,
        tasks=args.tasks.split(","),
        items=args.items,
        lanes=args.lanes,
        text_tokens=args.text_tokens,
        device=args.device,
        show=args.show,
    )
    text = json.dumps(report, indent=2)
    if args.out is not None:
        args.out.write_text(text + "\n", encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
