"""Trains an embedded model: `python -m tools.nano.train nano --minutes 8.5 --out build/nano/trained`.

The learning rate follows the clock, so that a run ends annealed when its time is over, however fast the machine is;
`--steps` counts steps instead. Data come from worker processes and are a function of seed and batch number alone.
Needs torch, numpy, safetensors, and for the workers tokenizers, jinja2, msgspec and ml_dtypes.

Written to the folder: `log.jsonl` (a line every few steps and at every check-up), `resume.pt` (everything, to go on on
the same machine; each time in one step), and the bfloat16 checkpoint in parts small enough to be carried home.
"""

import argparse
import itertools
import json
import os
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from tools.nano.checkup import Exam, check_up, make_exam
from tools.nano.config import MODELS
from tools.nano.data.batches import Batches, Mixture, TokenBatch
from tools.nano.data.prepare import CORPUS
from tools.nano.data.tasks import EVALUATED
from tools.nano.losses import losses
from tools.nano.model import Nano
from tools.nano.optimizer import make_optimizers, set_rates
from tools.nano.weights import read_weights, write_weights

LOG_STEPS = 20
CLIP = 1.0


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One run. Exactly one of `minutes` and `steps` is set.

    Attributes:
        config: the model, as `tools.nano.config` describes it.
        out: folder for log and checkpoints.
        seed: of the weights and of the data.
        workers: processes that make batches; 0 makes them between steps.
        save_seconds: how often to write checkpoints.
        exam_count: held-out examples a task at a check-up; 0 does none.
        exam_seconds: how often to check up; there is always one at the end.
        autocast: run matrix products in bfloat16.
        rate: factor on all learning rates.
        compile: compile the blocks; costs minutes at the start, less when a run on the same machine has done it.
        initial: weights to start from, made by an earlier run.
    """

    config: dict[str, Any]
    out: Path
    corpus: Path = CORPUS
    mixture: Mixture = field(default_factory=Mixture)
    minutes: float | None = None
    steps: int | None = None
    seed: int = 1
    device: str = "cpu"
    workers: int = 0
    save_seconds: float = 60
    exam_count: int = 40
    exam_seconds: float = 120
    exam_tasks: tuple[str, ...] = tuple(EVALUATED)
    autocast: bool = False
    rate: float = 1.0
    compile: bool = False
    initial: Path | None = None


class Training:
    """Model, optimizers and how far they are."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.device = torch.device(settings.device)
        random.seed(settings.seed)
        torch.manual_seed(settings.seed)
        self.model = Nano(settings.config)
        if settings.initial is not None:
            self.model.load_state_dict(read_weights(settings.initial)[1])
        self.model.to(self.device)
        self.optimizers = make_optimizers(self.model)
        self.step = 0
        self.seconds = 0.0  # of training, over all runs
        if settings.compile:
            for block in (*self.model.model.layers, *self.model.mtp.layers):
                block.compile()

    @property
    def progress(self) -> float:
        """How much of the budget is used, from 0 to 1."""
        settings = self.settings
        if settings.steps is not None:
            return self.step / settings.steps
        assert settings.minutes is not None
        return self.seconds / (60 * settings.minutes)

    @property
    def dtype(self) -> torch.dtype | None:
        """Of autocast matrix products."""
        return torch.bfloat16 if self.settings.autocast else None

    def update(self, batch: TokenBatch) -> dict[str, torch.Tensor]:
        """One optimizer step. The figures stay on the device."""
        set_rates(self.optimizers, self.progress, self.settings.rate)
        with torch.autocast(self.device.type, self.dtype, enabled=self.dtype is not None):
            found = losses(self.model, batch)
        found.total.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.step += 1
        figures = {"loss": found.following, "balance": found.balance, "gradient": norm}
        figures |= {f"draft_{number}": loss for number, loss in enumerate(found.drafts, 1)}
        return {name: value.detach() for name, value in figures.items()}

    def save(self) -> None:
        """Write the resume file and the checkpoint folder."""
        state = {
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "step": self.step,
            "seconds": self.seconds,
            "seed": self.settings.seed,
            "config": self.settings.config,
        }
        path = self.settings.out / "resume.pt"
        temporary = path.with_name(".resume.pt.tmp")
        torch.save(state, temporary)
        temporary.replace(path)
        write_weights(self.settings.out / "checkpoint", self.settings.config, self.model.state_dict())

    def resume(self) -> bool:
        """Take up the run of the folder, if there is one.

        Raises:
            ValueError: it is the run of another model or seed.
        """
        path = self.settings.out / "resume.pt"
        if not path.exists():
            return False
        state = torch.load(path, map_location=self.device, weights_only=True)
        if state["config"] != self.settings.config or state["seed"] != self.settings.seed:
            raise ValueError(f"{path} is of another model or seed; name another folder or remove it")
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.step, self.seconds = state["step"], state["seconds"]
        return True


class Log:
    """Lines of JSON in a file; the important ones also on standard output."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")

    def write(self, event: str, **fields: Any) -> None:
        """Write a line."""
        line = json.dumps({"event": event, **fields})
        self._file.write(line + "\n")
        self._file.flush()
        print(line, flush=True)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def train(settings: Settings) -> dict[str, Any]:
    """Train until the budget is used; returns the last check-up."""
    if (settings.minutes is None) == (settings.steps is None):
        raise ValueError("set either minutes or steps")
    settings.out.mkdir(parents=True, exist_ok=True)
    torch.set_float32_matmul_precision("high")
    training = Training(settings)
    log = Log(settings.out / "log.jsonl")
    try:
        resumed = training.resume()
        exam = (
            make_exam(settings.corpus, count=settings.exam_count, tasks=settings.exam_tasks)
            if settings.exam_count
            else None
        )
        log.write(
            "start",
            model=settings.config["architectures"][0],
            parameters=sum(parameter.numel() for parameter in training.model.parameters()),
            resumed=resumed,
            step=training.step,
            seed=settings.seed,
            tokens_per_step=settings.mixture.tokens,
            torch=torch.__version__,
            device=torch.cuda.get_device_name() if training.device.type == "cuda" else "cpu",
        )
        return _loop(training, exam, log)
    finally:
        log.close()


def _loop(training: Training, exam: Exam | None, log: Log) -> dict[str, Any]:
    settings = training.settings
    batches = _batches(settings, training.step)
    began = clock = time.monotonic()
    before = training.seconds
    saved = examined = began
    tokens = 0
    while training.progress < 1:
        batch = next(batches)
        figures = training.update(batch.to(training.device))
        tokens += batch.token_ids.numel()
        now = time.monotonic()
        training.seconds = before + now - began
        if training.step % LOG_STEPS == 0 or training.progress >= 1:
            values = {name: round(float(value), 4) for name, value in figures.items()}
            now = time.monotonic()  # reading the figures waited for the device
            log.write(
                "step",
                step=training.step,
                seconds=round(training.seconds, 1),
                progress=round(training.progress, 4),
                row=batch.token_ids.shape[1],
                tokens_per_second=round(tokens / (now - clock)),
                **values,
            )
            tokens, clock = 0, now
        if now - saved > settings.save_seconds:
            training.save()
            saved = time.monotonic()
        if exam is not None and now - examined > settings.exam_seconds and training.progress < 1:
            log.write("checkup", step=training.step, **check_up(training.model, exam, training.device, training.dtype))
            examined = time.monotonic()
    training.save()
    report = check_up(training.model, exam, training.device, training.dtype) if exam is not None else {}
    log.write("end", step=training.step, seconds=round(training.seconds, 1), **report)
    return report


def _batches(settings: Settings, first: int) -> Iterator[TokenBatch]:
    dataset = Batches(settings.corpus, settings.mixture, seed=settings.seed)
    if not settings.workers:
        return (dataset[number] for number in itertools.count(first))
    return iter(
        DataLoader(
            dataset,
            batch_size=None,
            sampler=range(first, first + 1_000_000),
            num_workers=settings.workers,
            prefetch_factor=4,
            pin_memory=settings.device.startswith("cuda"),
            multiprocessing_context="forkserver",
            collate_fn=_same,
        )
    )


def _same(batch: Any) -> Any:
    return batch


def benchmark(settings: Settings) -> None:
    """Print tokens a second and peak memory of each kind of row, from batches made beforehand."""
    torch.set_float32_matmul_precision("high")
    training = Training(settings)
    mixture = settings.mixture
    kinds = [
        replace(mixture, long_share=0.0),
        *(replace(mixture, long_share=1.0, long_rows=(r,)) for r in mixture.long_rows),
    ]
    repeats = settings.steps or 10
    for kind in kinds:
        batch = Batches(settings.corpus, kind, seed=settings.seed)[0].to(training.device)
        training.update(batch)
        training.update(batch)
        _wait(training.device)
        began = time.monotonic()
        for _ in range(repeats):
            training.update(batch)
        _wait(training.device)
        seconds = (time.monotonic() - began) / repeats
        peak = torch.cuda.max_memory_allocated() / 2**30 if training.device.type == "cuda" else 0.0
        print(
            json.dumps(
                {
                    "row": batch.token_ids.shape[1],
                    "tokens": batch.token_ids.numel(),
                    "milliseconds": round(1000 * seconds, 1),
                    "tokens_per_second": round(batch.token_ids.numel() / seconds),
                    "peak_gib": round(peak, 2),
                }
            ),
            flush=True,
        )


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def main(words: list[str] | None = None) -> int:
    """Read the command line and train."""
    cuda = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=list(MODELS))
    parser.add_argument("--out", type=Path, required=True, help="folder of log and checkpoints")
    parser.add_argument("--minutes", type=float, default=None)
    parser.add_argument("--steps", type=int, default=None)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=Mixture.tokens, help="tokens a step")
    parser.add_argument("--corpus", type=Path, default=CORPUS)
    parser.add_argument("--device", default="cuda" if cuda else "cpu")
    parser.add_argument("--workers", type=int, default=max((os.cpu_count() or 1) - 2, 0) if cuda else 0)
    parser.add_argument("--exam", type=int, default=40, metavar="N", help="examples a task at a check-up (default 40)")
    parser.add_argument("--exam-seconds", type=float, default=120)
    parser.add_argument("--save-seconds", type=float, default=60)
    parser.add_argument("--rate", type=float, default=1.0, help="factor on all learning rates")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--initial", type=Path, default=None, help="checkpoint folder to start from")
    parser.add_argument("--benchmark", action="store_true", help="only measure speed; --steps is the number of repeats")
    args = parser.parse_args(words)
    # Workers are processes; threads inside their tokenizers would only get into each other's way.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    settings = Settings(
        config=MODELS[args.model],
        out=args.out,
        corpus=args.corpus,
        mixture=Mixture(tokens=args.tokens),
        minutes=args.minutes,
        steps=args.steps,
        seed=args.seed,
        device=args.device,
        workers=args.workers,
        exam_count=args.exam,
        exam_seconds=args.exam_seconds,
        save_seconds=args.save_seconds,
        autocast=args.device.startswith("cuda"),
        rate=args.rate,
        compile=args.compile,
        initial=args.initial,
    )
    if args.benchmark:
        benchmark(settings)
    else:
        train(settings)
    return 0


if __name__ == "__main__":
    sys.exit(main())
