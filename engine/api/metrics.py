"""Prometheus metrics: llama.cpp's names and our own (spec/serving.md §5.4), as far as this version has the data."""

import time
from collections.abc import Callable
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from engine.api.engine_link import EngineLink
from engine.api.generation import Account
from engine.protocol import Limits, Statistics

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
BUCKETS = (
    0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640, 1280,
)  # fmt: skip

Outcome = Literal["completed", "cancelled", "failed", "rejected"]
OUTCOMES: tuple[Outcome, ...] = ("completed", "cancelled", "failed", "rejected")


class Metrics:
    """All series of one process, in a registry of their own. Counters start when the server first becomes ready."""

    def __init__(self, link: EngineLink, ready: Callable[[], bool]) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._link = link
        self._tokens()
        self._requests()
        self._constraints()
        self._gauges(ready)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, registry=self.registry)

    def _gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        Gauge(name, text, registry=self.registry).set_function(value)

    def _tokens(self) -> None:
        self._llama_prompt = self._counter("llamacpp:prompt_tokens", "Prompt tokens computed.")
        self._llama_prompt_seconds = self._counter("llamacpp:prompt_seconds", "Seconds of prefill.")
        self._llama_predicted = self._counter("llamacpp:tokens_predicted", "Tokens generated.")
        self._llama_predicted_seconds = self._counter("llamacpp:tokens_predicted_seconds", "Seconds of decoding.")
        self._prompt = self._counter("ninfer_prompt_tokens", "Prompt tokens of finished requests.")
        self._cached = self._counter("ninfer_prompt_tokens_cached", "Prompt tokens that were reused.")
        self._prefill = self._counter("ninfer_prefill_tokens", "Prompt tokens computed.")
        self._prefill_seconds = self._counter("ninfer_prefill_seconds", "Seconds of prefill.")
        self._generated = self._counter("ninfer_generation_tokens", "Tokens generated.")
        self._decoded = self._counter("ninfer_decode_tokens", "Tokens generated after the first of each request.")
        self._decode_seconds = self._counter("ninfer_decode_seconds", "Seconds of decoding.")
        self._rounds = self._counter("ninfer_decode_rounds", "Rounds of the engine.")

    def _requests(self) -> None:
        self._outcomes = Counter(
            "ninfer_requests", "Requests by outcome, from preparation on.", ["outcome"], registry=self.registry
        )
        for outcome in OUTCOMES:
            self._outcomes.labels(outcome)
        # One series a name, never a key; names are few and given by the owner of the box.
        self._by_key = Counter("ninfer_key_requests", "Requests by name of the key.", ["key"], registry=self.registry)
        self._tokens_by_key = Counter(
            "ninfer_key_tokens", "Prompt and generated tokens by name of the key.", ["key", "kind"],
            registry=self.registry,
        )  # fmt: skip
        self._failures = self._counter("ninfer_response_failures", "Answers that ended in a server error.")

        def histogram(name: str, text: str) -> Histogram:
            return Histogram(name, text, buckets=BUCKETS, registry=self.registry)

        self._first = histogram("ninfer_time_to_first_token_seconds", "From arrival to the first token.")
        self._duration = histogram("ninfer_request_duration_seconds", "From arrival to the end of the answer.")
        self._queue = histogram("ninfer_request_queue_seconds", "Wait for a lane.")

    def _constraints(self) -> None:
        def labelled(name: str, text: str, label: str, values: tuple[str, ...]) -> Counter:
            made = Counter(f"ninfer_constraint_{name}", text, [label], registry=self.registry)
            for value in values:
                made.labels(value)
            return made

        self._constrained = labelled(
            "requests", "Answers under a constraint, by how they ended.", "outcome",
            ("terminated", "complete_interrupted", "incomplete_interrupted"),
        )  # fmt: skip
        self._constraint_cache = labelled(
            "cache", "Grammars, by where they came from.", "result", ("hit", "built", "waited")
        )
        self._constraint_seconds = {
            part: self._counter(f"ninfer_constraint_{part}_seconds", f"Seconds of {text}.")
            for part, text in (("prepare", "compiling"), ("mask", "masks"), ("matcher", "following answers"))
        }
        self._mask_positions = self._counter("ninfer_constraint_mask_positions", "Tokens sampled under a mask.")
        self._mask_bytes = self._counter("ninfer_constraint_mask_upload_bytes", "Bytes of masks given to sampling.")

    def _gauges(self, ready: Callable[[], bool]) -> None:
        link = self._link
        self._gauge("ninfer_engine_ready", "1 while requests are served.", lambda: float(ready()))
        self._gauge("ninfer_requests_running", "Requests on a lane.", lambda: link.statistics.running)
        self._gauge("ninfer_requests_waiting", "Requests without a lane.", lambda: link.statistics.waiting)
        self._gauge("ninfer_requests_prefilling", "Requests in prefill.", lambda: link.statistics.prefilling)
        self._gauge("ninfer_device_kv_used_pages", "KV pages in use.", lambda: link.statistics.pages_allocated)
        self._gauge("ninfer_device_kv_capacity_pages", "KV pages.", lambda: link.statistics.pages_capacity)

    def serving(self, model: str, limits: Limits, admitted: Callable[[], int]) -> None:
        """Add what is known once the server is first ready."""
        start = time.time()
        self._gauge("ninfer_server_start_time_seconds", "Unix time of readiness.", lambda: start)
        self._gauge("ninfer_max_concurrency", "Lanes.", lambda: limits.lanes)
        self._gauge("ninfer_max_context_tokens", "Longest request.", lambda: limits.max_context)
        self._gauge("ninfer_spec_decode_draft_window", "Draft tokens a round.", lambda: 0)
        info = Gauge("ninfer_model_info", "1.", ["model_name", "speculative_backend"], registry=self.registry)
        info.labels(model, "none").set(1)
        lanes = limits.lanes
        self._gauge(
            "llamacpp:requests_processing", "Admitted requests up to the lanes.", lambda: min(admitted(), lanes)
        )
        self._gauge(
            "llamacpp:requests_deferred", "Admitted requests over the lanes.", lambda: max(admitted() - lanes, 0)
        )

    def statistics(self, before: Statistics, now: Statistics) -> None:
        """Count the rounds between two reports of one engine."""
        self._rounds.inc(max(0, now.rounds - before.rounds))

    def first_token(self, seconds: float) -> None:
        """Seconds from arrival to the first token of a request."""
        self._first.observe(seconds)

    def ended(self, outcome: Outcome, account: Account, duration: float, key: str | None = None) -> None:
        """Count one request that got as far as its preparation. `duration` is in seconds, `key` a name."""
        if key is not None:
            self._by_key.labels(key).inc()
            self._tokens_by_key.labels(key, "prompt").inc(account.prompt_tokens)
            self._tokens_by_key.labels(key, "generated").inc(account.generated)
        self._outcomes.labels(outcome).inc()
        self._duration.observe(duration)
        if outcome == "failed":
            self._failures.inc()
        self._count_constraint(account)
        if account.first_token is None:
            return
        self._prompt.inc(account.prompt_tokens)
        self._cached.inc(account.cached_tokens)
        self._generated.inc(account.generated)
        self._llama_predicted.inc(account.generated)
        self._decoded.inc(account.generated - 1)
        timings = account.engine
        if timings is None:  # cancelled or failed: the engine did not report
            return
        self._queue.observe(timings.queue)
        self._prefill.inc(timings.prefill_tokens)
        self._prefill_seconds.inc(timings.prefill)
        self._llama_prompt.inc(timings.prefill_tokens)
        self._llama_prompt_seconds.inc(timings.prefill)
        self._llama_predicted_seconds.inc(timings.decode)
        self._decode_seconds.inc(timings.decode)

    def _count_constraint(self, account: Account) -> None:
        observed = account.constraint
        if observed is None:
            return
        whole = "complete_interrupted" if observed["complete"] else "incomplete_interrupted"
        self._constrained.labels("terminated" if observed["terminated"] else whole).inc()
        if observed["cache"] is not None:
            self._constraint_cache.labels(observed["cache"]).inc()
        for part, counter in self._constraint_seconds.items():
            counter.inc(observed["timings_seconds"][part])
        self._mask_positions.inc(observed["mask_positions"])
        self._mask_bytes.inc(observed["mask_upload_bytes"])

    def render(self) -> bytes:
        """Prometheus text format 0.0.4."""
        return generate_latest(self.registry)
