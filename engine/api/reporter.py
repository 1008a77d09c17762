"""A line and a record about the work of each interval (spec/serving.md §13, `--log-stats-interval-ms`)."""

import asyncio
import time
from typing import Any

from engine.api.engine_link import EngineLink
from engine.api.request_log import RequestLog
from engine.api.totals import Totals
from engine.log import get_logger
from engine.protocol import Statistics

log = get_logger(__name__)


class Reporter:
    """Compares `totals` with what they were an interval ago. Nothing is said about an idle interval but the last."""

    def __init__(self, totals: Totals, link: EngineLink, records: RequestLog) -> None:
        self._totals, self._link, self._records = totals, link, records

    async def run(self, interval: float) -> None:
        """Report every `interval` seconds until cancelled, and once more then. 0 reports nothing."""
        if interval <= 0:
            return
        before, since = self._totals.copy(), time.monotonic()
        try:
            while True:
                await asyncio.sleep(interval)
                now = time.monotonic()
                self._report(before, now - since, final=False)
                before, since = self._totals.copy(), now
        finally:
            self._report(before, time.monotonic() - since, final=True)

    def _report(self, before: Totals, seconds: float, *, final: bool) -> None:
        found = interval_record(before, self._totals, self._link.statistics, seconds)
        busy = any(found["tokens"].values())
        if busy:
            speed = found["throughput_tokens_per_second"]
            log.info(
                "throughput",
                prefill_tokens_per_second=speed["prefill"],
                decode_tokens_per_second=speed["decode"],
                running=found["scheduler"]["running"],
                waiting=found["scheduler"]["waiting"],
            )
        if busy or final:
            self._records.write(
                "throughput", found | {"final_interval": final, "engine_recoveries": self._link.losses}
            )  # fmt: skip


def interval_record(before: Totals, now: Totals, statistics: Statistics, seconds: float) -> dict[str, Any]:
    """The record's fields about `seconds` of work."""
    prefill = now.prompt_tokens - before.prompt_tokens
    decode = now.decode_tokens - before.decode_tokens
    rounds, rows = now.rounds - before.rounds, now.row_rounds - before.row_rounds
    return {
        "interval_seconds": round(seconds, 6),
        "tokens": {
            "computed_prefill": prefill,
            "committed_decode": decode,
            "reused_prompt": now.reused_tokens - before.reused_tokens,
        },
        "throughput_tokens_per_second": {"prefill": _per(prefill, seconds), "decode": _per(decode, seconds)},
        "scheduler": {
            "running": statistics.running,
            "waiting": statistics.waiting,
            "prefilling": statistics.prefilling,
            "decode_ready": max(0, statistics.running - statistics.prefilling),
            "paused": 0,
            "replaying": 0,
        },
        "scheduling": {"preemptions": 0, "snapshot_restores": 0, "replay_restores": 0, "replayed_tokens": 0},
        "decode_batch": {"rounds": rounds, "row_rounds": rows, "average_size": _per(rows, rounds)},
        "host_work": None,
        "context_cache": None,
    }


def _per(amount: float, unit: float) -> float:
    return round(amount / unit, 3) if unit > 0 else 0.0
