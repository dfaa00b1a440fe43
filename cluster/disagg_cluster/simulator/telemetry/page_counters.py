"""Counters of a simulated engine's metrics page, since its process began."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence as Values

from disagg_cluster.simulator.cluster.network import Transfer
from disagg_cluster.simulator.engine.batch import Outcome, Sequence
from disagg_exporter.model import SECOND_NS

# vLLM's own bounds, so that quantiles computed from both pages are comparable.
_FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_NEXT_TOKEN = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_REQUEST = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0),
    *(30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_STEP_TOKENS = (1.0, *(float(2**power) for power in range(3, 15)))
_SAMPLES = (1.0, 2.0, 5.0, 10.0, 20.0)
_PREEMPTIONS = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)
_TRANSFER = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 5.0)
_BYTES = tuple(float(2**power) for power in range(11, 35, 2))
_DESCRIPTORS = (
    *(10.0, 20.0, 30.0, 50.0, 75.0, 100.0, 200.0, 400.0),
    *(1000.0, 2000.0, 4000.0, 10000.0, 20000.0, 50000.0),
)


class HistogramCounter:
    """A classic Prometheus histogram."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Values[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times


class PageCounters:
    """The counters and histograms of one process; token bounds go up to `longest_tokens`."""

    def __init__(self, longest_tokens: int = 1024) -> None:
        self.computed_tokens = 0
        self.cached_tokens = 0
        self.external_tokens = 0
        self.generation_tokens = 0
        self.preemptions = 0
        self.finished = 0
        self.aborted = 0
        self.failed_transfers = 0
        self.expired_requests = 0
        tokens = one_two_five(longest_tokens)
        self.prompt_tokens = HistogramCounter(tokens)
        self.output_tokens = HistogramCounter(tokens)
        self.prefill_computed_tokens = HistogramCounter(tokens)
        self.step_tokens = HistogramCounter(_STEP_TOKENS)
        self.samples_asked = HistogramCounter(_SAMPLES)
        self.time_to_first_token = HistogramCounter(_FIRST_TOKEN)
        self.inter_token_latency = HistogramCounter(_NEXT_TOKEN)
        self.time_per_output_token = HistogramCounter(_NEXT_TOKEN)
        self.whole_time = HistogramCounter(_REQUEST)
        self.queue_time = HistogramCounter(_REQUEST)
        self.inference_time = HistogramCounter(_REQUEST)
        self.prefill_time = HistogramCounter(_REQUEST)
        self.decode_time = HistogramCounter(_REQUEST)
        self.request_preemptions = HistogramCounter(_PREEMPTIONS)
        self.transfer_time = HistogramCounter(_TRANSFER)
        self.post_time = HistogramCounter((0.001, *_TRANSFER))
        self.transfer_bytes = HistogramCounter(_BYTES)
        self.transfer_descriptors = HistogramCounter(_DESCRIPTORS)

    def count(self, outcome: Outcome) -> None:
        """Add steps that have ended."""
        written = len(outcome.started)
        self.computed_tokens += outcome.computed_tokens
        self.cached_tokens += outcome.cached_tokens
        self.external_tokens += outcome.external_tokens
        self.preemptions += outcome.preempted
        for gap_ns, times in outcome.gaps.items():
            written += times
            self.inter_token_latency.observe(gap_ns / SECOND_NS, times)
        self.generation_tokens += written
        if written:
            # vLLM 0.32 keeps no stats of a step without output (`async_llm.py`).
            tokens_each = outcome.computed_tokens + written / outcome.count
            self.step_tokens.observe(tokens_each, outcome.count)
        for sequence in outcome.started:
            seconds = (outcome.ended_ns - sequence.arrived_ns) / SECOND_NS
            self.time_to_first_token.observe(seconds)
        for sequence in outcome.finished:
            self._finish(sequence)

    def transferred(self, transfer: Transfer, descriptors: int) -> None:
        """Add one prompt's KV transfer, successful or failed."""
        if transfer.failed:
            self.failed_transfers += 1
            return
        self.transfer_time.observe(transfer.seconds)
        self.post_time.observe(0.001)
        self.transfer_bytes.observe(transfer.bytes)
        self.transfer_descriptors.observe(descriptors)

    def _finish(self, sequence: Sequence) -> None:
        arrived_ns, ended_ns = sequence.arrived_ns, sequence.last_token_ns
        scheduled_ns = sequence.scheduled_ns or arrived_ns
        first_ns = sequence.first_token_ns or ended_ns
        decode_seconds = (ended_ns - first_ns) / SECOND_NS
        self.finished += 1
        self.prompt_tokens.observe(sequence.prompt_tokens)
        self.output_tokens.observe(sequence.written)
        self.prefill_computed_tokens.observe(sequence.prompt_tokens - sequence.cached_tokens)
        self.samples_asked.observe(1)
        self.whole_time.observe((ended_ns - arrived_ns) / SECOND_NS)
        self.queue_time.observe((scheduled_ns - arrived_ns) / SECOND_NS)
        self.inference_time.observe((ended_ns - scheduled_ns) / SECOND_NS)
        self.prefill_time.observe((first_ns - scheduled_ns) / SECOND_NS)
        self.decode_time.observe(decode_seconds)
        self.time_per_output_token.observe(decode_seconds / max(1, sequence.written - 1))
        self.request_preemptions.observe(sequence.preemptions)


def one_two_five(most: int) -> tuple[float, ...]:
    """Return 1, 2, 5, 10, 20, 50 … up to `most`."""
    powers = range(len(str(most)))
    bounds = [float(digit * 10**power) for power in powers for digit in (1, 2, 5)]
    return tuple(bound for bound in bounds if bound <= most)
