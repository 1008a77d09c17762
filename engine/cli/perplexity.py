"""`ninfer-perplexity`: how well a model predicts text, overall and by domain (spec/cli.md §3)."""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from engine.exits import ConfigurationError, NInferError
from engine.quality.corpus import Corpus, read_corpus, read_single
from engine.quality.perplexity import Progress, ScoredStream, by_domain, perplexity, report, score, totals
from engine.quality.subject import KV_DTYPES, Settings, Subject

PROGRESS_SECONDS = 10.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and give its exit code."""
    args = _parser().parse_args(arguments)
    try:
        return run(args)
    except NInferError as error:
        print(f"ninfer-perplexity: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"ninfer-perplexity: {error}", file=sys.stderr)
        return NInferError.exit_code
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ninfer-perplexity", description="Measure the perplexity of an artifact.")
    parser.add_argument("model", type=Path, help="the artifact")
    origin = parser.add_mutually_exclusive_group(required=True)
    origin.add_argument("--corpus", type=Path, metavar="MANIFEST", help="a corpus, such as etc/corpus/held-out.json")
    origin.add_argument("--text", type=Path, metavar="FILE", help="one file of UTF-8 text")
    parser.add_argument("--quick", action="store_true", help="with --corpus: one stream of each domain")
    parser.add_argument("--context", type=int, default=4096, metavar="N", help="tokens of a window (default: 4096)")
    parser.add_argument(
        "--stride", type=int, default=2048, metavar="N", help="new tokens of each further window (default: 2048)"
    )
    parser.add_argument("--device", default="cpu", help="cpu; no other device is measured by this version")
    parser.add_argument(
        "--kv-dtype", default="fp32", metavar="NAME", help=f"key-value format: {', '.join(KV_DTYPES)} (default: fp32)"
    )
    parser.add_argument("--gdn-state-fp16", action="store_true", help="keep DeltaNet states in 16 bits")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="empty or new folder for report.json "
        "(default: profiles/perplexity/MODEL/SIGNATURE/KV/CORPUS/MODE/UTC STAMP)",
    )
    return parser


def run(args: argparse.Namespace, clock: Callable[[], float] = time.monotonic) -> int:
    """Measure as `args` say; the table goes to standard output, progress to standard error. Returns 0.

    Raises:
        NInferError: a setting or file cannot be used.
        OSError: the report cannot be written.
    """
    if args.device != "cpu":
        raise ConfigurationError(f"device {args.device!r} cannot measure perplexity in this version; use cpu")
    if args.quick and args.corpus is None:
        raise ConfigurationError("--quick goes with --corpus")
    settings = Settings(kv_dtype=args.kv_dtype, gdn_state_fp16=args.gdn_state_fp16)
    corpus = read_corpus(args.corpus, quick=args.quick) if args.corpus is not None else read_single(args.text)
    if args.output is not None:
        _refuse_filled(args.output)
    begun = clock()
    subject = Subject(args.model, settings)
    loaded = clock()
    output = args.output if args.output is not None else _default_output(subject, corpus)
    _refuse_filled(output)
    _say(f"{corpus.name} ({corpus.mode}): {len(corpus.streams)} streams, {_bytes(corpus):,} bytes")
    streams = score(subject, corpus, args.context, args.stride, on_window=_progress(clock), on_stream=_say_stream)
    seconds = clock() - loaded
    execution = {"device": "cpu", "context_tokens": args.context, "stride_tokens": args.stride}
    timing = {"load_seconds": round(loaded - begun, 3), "score_seconds": round(seconds, 3)}
    content = report(subject, corpus, streams, execution, timing)
    path = _write(output, json.dumps(content, indent=2) + "\n")
    print(f"perplexity of {subject.name}")
    print(f"kv {args.kv_dtype}, corpus {corpus.name}/{corpus.mode}, context {args.context}, stride {args.stride}")
    print(f"{'domain':<20} {'tokens':>10} {'mean_nll':>12} {'ppl':>16}")
    for name, row in {**by_domain(streams), "overall": totals(streams)}.items():
        print(f"{name:<20} {row['scored_tokens']:>10} {row['mean_nll']:>12.6f} {row['perplexity']:>16.6f}")
    print(f"{sum(stream.scored for stream in streams) / max(seconds, 1e-9):.1f} tokens/s")
    print(path)
    return 0


def _progress(clock: Callable[[], float]) -> Callable[[Progress], None]:
    begun = last = clock()

    def line(state: Progress) -> None:
        nonlocal last
        now = clock()
        if now - last < PROGRESS_SECONDS:
            return
        last = now
        rate = state.tokens / (now - begun)
        left = (state.total - state.tokens) / rate
        _say(
            f"{state.tokens:,} of {state.total:,} tokens, {state.windows} windows, ppl {state.perplexity:.4f}, "
            f"{rate:.1f} tokens/s, {left:.0f} s left"
        )

    return line


def _say_stream(stream: ScoredStream) -> None:
    ppl = perplexity(stream.nll, stream.scored)
    _say(f"{stream.id}: {stream.scored:,} tokens in {len(stream.windows)} windows, ppl {ppl:.6f}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _bytes(corpus: Corpus) -> int:
    return sum(len(stream.text.encode()) for stream in corpus.streams)


def _default_output(subject: Subject, corpus: Corpus) -> Path:
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    return Path(
        "profiles", "perplexity", subject.path.stem, subject.fingerprint[:12], subject.settings.kv_dtype,
        corpus.name, corpus.mode, stamp,
    )  # fmt: skip


def _refuse_filled(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigurationError(f"output {folder} is not an empty folder; name another")


def _write(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path, temporary = folder / "report.json", folder / f".report.json.{os.getpid()}.tmp"
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.rename(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


if __name__ == "__main__":
    sys.exit(main())
