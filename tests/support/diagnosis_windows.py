"""Made-up windows of exported series: engines as numbers that change at one moment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

import numpy as np

from disagg_cluster.planner.diagnose.evidence.series_window import (
    Floats,
    ScrapedSeries,
    SeriesWindow,
)

BEGIN_SECONDS = 1.75e9
LONG_AGO_SECONDS = BEGIN_SECONDS - 86_400.0


@dataclass(frozen=True, slots=True)
class Line:
    """One engine: its activity per second, and what it exports.

    `wait_seconds` is a request's time to first token there, `stage_seconds` the part of it in
    steps. `slowness` is its step time over that expected by its own model, None if it has no model.
    `front_seconds` is the users' wait before it, if a frontend reports it.
    """

    name: str
    role: str = "prefill"
    node: str = "node-0"
    kind: str = "vllm"
    gpus: int = 1
    requests: float = 2.0
    prompt_tokens: float = 3000.0
    prompt_spread: float = 0.2
    cached_share: float = 0.3
    step_tokens: float = 2000.0
    token_seconds: float = 1e-4
    slowness: float | None = 1.0
    mixed_slowness: float | None = None
    gap_share: float = 0.01
    wait_seconds: float = 0.4
    stage_seconds: float = 0.3
    waiting: float = 0.0
    running: float = 2.0
    deferred: float = 0.0
    preallocating: float | None = None
    kv_usage: float = 0.2
    kv_tokens: float = 400_000.0
    queue_seconds: float | None = None
    preemptions: float = 0.0
    transfer_seconds: float = 0.02
    transfers: float = 0.0
    transfer_failures: float = 0.0
    step_limit: float | None = 8192.0
    batch_limit: float | None = 256.0
    knee_tokens: float | None = 800.0
    clocks: tuple[float, ...] = (1.98e9,)
    throttled: tuple[float, ...] = (0.0,)
    capped: tuple[float, ...] = (0.0,)
    foreign_sm: float | None = 0.0
    starting: float = 0.0
    started_seconds: float = LONG_AGO_SECONDS
    is_up: bool = True
    then: Mapping[str, object] = field(default_factory=dict)

    def at(self, *, after: bool) -> Line:
        """Return the engine before or after the change."""
        return replace(self, **self.then) if after else self  # type: ignore[arg-type] # by name


_Read = Callable[[Line], float | None]


class _Add(Protocol):
    def __call__(self, name: str, labels: Mapping[str, str], *, values: Floats) -> None: ...


@dataclass(frozen=True, slots=True)
class _Telling:
    """The samples of a line: by `old` before the change and by `new` after it."""

    old: Line
    new: Line
    after: np.ndarray
    step_seconds: float
    noise: float
    rng: np.random.Generator
    add: _Add

    def gauge(self, name: str, labels: Mapping[str, str], read: _Read) -> None:
        """Add a gauge, if it is known."""
        self.add(name, labels, values=self._over(read))

    def counter(self, name: str, labels: Mapping[str, str], read: _Read) -> None:
        """Add a counter with a noisy rate; nothing if it is ever unknown."""
        rates = self._over(read)
        if np.isfinite(rates).all():
            strays = 1 + self.noise * self.rng.standard_normal(len(rates))
            gained = np.maximum(rates * strays, 0.0) * self.step_seconds
            self.add(name, labels, values=np.cumsum(gained))

    def _over(self, read: _Read) -> Floats:
        """Return a value for each sample, before and after the change."""
        old, new = (
            np.nan if value is None else value for value in (read(self.old), read(self.new))
        )
        return np.where(self.after, new, old).astype(float)


@dataclass(slots=True)
class WindowMaker:
    """Makes series of lines that all change at `onset_seconds` after the start."""

    seconds: float = 600.0
    onset_seconds: float = 450.0
    step_seconds: float = 15.0
    noise: float = 0.02
    seed: int = 0
    front_seconds: tuple[float, float] | None = None
    front_noise: float = 0.0
    _families: dict[str, list[ScrapedSeries]] = field(default_factory=dict)

    def make(self, lines: Sequence[Line]) -> SeriesWindow:
        """Return the window."""
        rng = np.random.default_rng(self.seed)
        times = BEGIN_SECONDS + np.arange(0.0, self.seconds + 1e-9, self.step_seconds)
        after = times >= BEGIN_SECONDS + self.onset_seconds
        for line in lines:
            self._engine(line, times, after, rng)
        if self.front_seconds is not None:
            self._front(lines, times, after, rng)
        families = {name: tuple(series) for name, series in self._families.items()}
        return SeriesWindow(BEGIN_SECONDS, float(times[-1]), families)

    def _engine(
        self, line: Line, times: Floats, after: np.ndarray, rng: np.random.Generator
    ) -> None:
        who = {"cluster": "c", "node": line.node, "engine": line.name}
        role = {**who, "role": line.role}
        old, new = line.at(after=False), line.at(after=True)
        shown = times if new.is_up else times[~after]
        add = partial(self._add, times=shown)
        telling = _Telling(old, new, after[: len(shown)], self.step_seconds, self.noise, rng, add)
        gauge = telling.gauge
        info = {**role, "model_name": "m", "kind": line.kind, "version": "0.32.0"}
        self._add("disagg_engine_info", info, shown, np.ones(len(shown)))
        self._gpus(line, who, shown, telling)
        self._work(role, telling)
        self._requests(line, role, telling)
        gauge("disagg_engine_up", who, lambda each: 1.0)
        gauge("disagg_engine_start_timestamp_seconds", who, lambda each: each.started_seconds)
        gauge("disagg_engine_max_num_batched_tokens", who, lambda each: each.step_limit)
        gauge("disagg_engine_max_num_seqs", who, lambda each: each.batch_limit)
        gauge("disagg_engine_prefill_knee_tokens", who, lambda each: each.knee_tokens)
        gauge("disagg_engine_kv_cache_tokens", who, lambda each: each.kv_tokens)

    def _gpus(self, line: Line, who: Mapping[str, str], shown: Floats, telling: _Telling) -> None:
        gauge, counter = telling.gauge, telling.counter
        for number in range(line.gpus):
            gpu = {"cluster": "c", "node": line.node, "gpu": f"GPU-{line.name}-{number}"}
            ones = np.ones(len(shown))
            self._add("disagg_gpu_info", {**gpu, "gpu_name": "H100"}, shown, ones)
            held = {**who, "gpu": gpu["gpu"], "role": line.role, "engine_namespace": ""}
            self._add("disagg_gpu_assignment_info", held, shown, ones)
            gauge("disagg_gpu_sm_clock_hertz", gpu, lambda each, n=number: _nth(each.clocks, n))
            gauge("disagg_gpu_foreign_sm_ratio", gpu, lambda each: each.foreign_sm)
            counter(
                "disagg_gpu_throttle_seconds_total",
                {**gpu, "reason": "thermal"},
                lambda each, n=number: _nth(each.throttled, n),
            )
            counter(
                "disagg_gpu_throttle_seconds_total",
                {**gpu, "reason": "power_cap"},
                lambda each, n=number: _nth(each.capped, n),
            )
            counter(
                "disagg_gpu_idle_seconds_total",
                {**gpu, "reason": "host_gap"},
                lambda each: _busy(each) * each.gap_share,
            )
            counter(
                "disagg_gpu_idle_seconds_total",
                {**gpu, "reason": "starting"},
                lambda each: each.starting,
            )

    def _work(self, role: Mapping[str, str], telling: _Telling) -> None:
        counter = telling.counter
        is_decode = role["role"] == "decode"
        kind = {"prefill": "context", "decode": "generation", "mixed": "mixed"}[role["role"]]
        mine = {**role, "kind": kind}

        def steps(each: Line) -> float:
            return each.requests * 100 / 8 if is_decode else _computed(each) / each.step_tokens

        counter("disagg_engine_steps_total", mine, steps)
        counter("disagg_engine_step_seconds_total", mine, _busy)
        counter(
            "disagg_engine_phase_tokens_total",
            {**role, "phase": "prefill"},
            lambda each: 0.0 if is_decode else _computed(each),
        )
        counter(
            "disagg_engine_phase_tokens_total",
            {**role, "phase": "decode"},
            lambda each: each.requests * (100.0 if is_decode else 0.0),
        )
        for origin, read in (
            ("computed", _computed),
            ("cached", lambda each: each.requests * each.prompt_tokens * each.cached_share),
        ):
            counter("disagg_engine_prompt_tokens_total", {**role, "origin": origin}, read)

        def expected(each: Line) -> float | None:
            return None if each.slowness is None else _busy(each) / each.slowness

        counter("disagg_engine_expected_step_seconds_total", mine, expected)
        counter(
            "disagg_engine_compared_step_seconds_total",
            mine,
            lambda each: None if each.slowness is None else _busy(each),
        )
        if role["role"] == "mixed":
            # Decode-only steps are as fast as the engine, however slow mixed ones are.
            pure = {**role, "kind": "generation"}
            counter(
                "disagg_engine_compared_step_seconds_total",
                pure,
                lambda each: None if each.mixed_slowness is None else 0.2,
            )
            counter(
                "disagg_engine_expected_step_seconds_total",
                pure,
                lambda each: None if each.mixed_slowness is None else 0.2,
            )

    def _requests(self, line: Line, role: Mapping[str, str], telling: _Telling) -> None:
        gauge, counter = telling.gauge, telling.counter
        name = "disagg_engine_time_to_first_token_seconds"
        if line.role == "prefill":
            name = "disagg_engine_prefill_time_to_first_token_seconds"
        counter(f"{name}_sum", role, lambda each: each.requests * each.wait_seconds)
        counter(f"{name}_count", role, lambda each: each.requests)
        counter("disagg_engine_arrivals_total", role, lambda each: each.requests)
        counter("disagg_engine_preemptions_total", role, lambda each: each.preemptions)
        stage = {**role, "component": "prefill"}
        head = "disagg_engine_ttft_component"
        counter(f"{head}_seconds_total", stage, lambda each: each.requests * each.stage_seconds)
        counter(f"{head}_requests_total", stage, lambda each: each.requests)
        stage = {**role, "component": "queue"}
        counter(
            f"{head}_seconds_total",
            stage,
            lambda each: None if each.queue_seconds is None else each.requests * each.queue_seconds,
        )
        counter(
            f"{head}_requests_total",
            stage,
            lambda each: None if each.queue_seconds is None else each.requests,
        )
        for state in ("waiting", "running", "deferred"):
            gauge(
                "disagg_engine_requests",
                {**role, "state": state},
                lambda each, state=state: getattr(each, state),
            )
        gauge("disagg_engine_kv_cache_usage_ratio", role, lambda each: each.kv_usage)
        queue = {**role, "queue": "prealloc"}
        gauge("disagg_engine_kv_queue_requests", queue, lambda each: each.preallocating)
        if line.role == "decode":
            head = "disagg_engine_kv_transfer"
            counter(f"{head}s_total", role, lambda each: each.transfers)
            counter(
                f"{head}_seconds_total", role, lambda each: each.transfers * each.transfer_seconds
            )
            counter(f"{head}_bytes_total", role, lambda each: each.transfers * 4e8)
        if line.role != "mixed":
            counter(
                "disagg_engine_kv_transfer_failures_total",
                {**role, "reason": "transfer" if line.role == "decode" else "expired"},
                lambda each: each.transfer_failures,
            )
        if line.role != "decode":
            self._lengths(role, telling)

    def _lengths(self, role: Mapping[str, str], telling: _Telling) -> None:
        """Add prompt lengths: a mean and, for each hundredth of spread, some very long ones."""
        for le in (500, 1000, 2000, 5000, 10_000, 20_000, 100_000, np.inf):

            def below(each: Line, le: float = float(le)) -> float:
                giants = max(0.0, each.prompt_spread - 0.2) / 10
                usual = 1 - giants if le > each.prompt_tokens else 0.0
                return each.requests * (usual + (giants if le > 50_000 else 0.0))

            text = "+Inf" if np.isinf(le) else f"{float(le)}"
            name = "disagg_engine_request_prompt_tokens_bucket"
            # Buckets are cumulative, so they cannot have independent noise.
            replace(telling, noise=0.0).counter(name, {**role, "le": text}, below)

    def _front(
        self,
        lines: Sequence[Line],
        times: Floats,
        after: np.ndarray,
        rng: np.random.Generator,
    ) -> None:
        assert self.front_seconds is not None
        entries = [line for line in lines if line.role != "decode"]
        decodes = [line for line in lines if line.role == "decode"]
        labels = {"cluster": "c", "node": lines[0].node, "source": "frontend"}
        labels |= {"model_name": "m", "engine_namespace": ""}
        rate = sum(line.requests for line in entries)
        waits = []
        for is_after in (False, True):
            inside = 0.0
            for pool in (entries, decodes):
                states = [line.at(after=is_after) for line in pool]
                total = sum(each.requests for each in states)
                if total:
                    inside += sum(e.requests * e.wait_seconds for e in states) / total
            waits.append(inside + self.front_seconds[is_after])
        seconds = np.where(after, waits[1], waits[0])
        seconds = seconds + self.front_noise * after * rng.standard_normal(len(times))
        gained = np.maximum(seconds, 0.0) * rate * self.step_seconds
        name = "disagg_request_time_to_first_token_seconds"
        self._add(f"{name}_sum", labels, times, np.cumsum(gained))
        count = np.full(len(times), rate * self.step_seconds)
        self._add(f"{name}_count", labels, times, np.cumsum(count))

    def _add(self, name: str, labels: Mapping[str, str], times: Floats, values: Floats) -> None:
        known = np.isfinite(values)
        if known.any():
            series = ScrapedSeries(dict(labels), times[known], values[known])
            self._families.setdefault(name, []).append(series)


def _nth(values: Sequence[float], number: int) -> float:
    return values[min(number, len(values) - 1)]


def _computed(line: Line) -> float:
    return line.requests * line.prompt_tokens * (1 - line.cached_share)


def _busy(line: Line) -> float:
    slowness = 1.0 if line.slowness is None else line.slowness
    if line.role == "decode":
        return line.requests * 0.1 * slowness
    return _computed(line) * line.token_seconds * slowness
