"""One engine: limits and load, learned from its steps or, more coarsely, from its page."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from functools import cache, partial
from operator import attrgetter
from statistics import median
from typing import TypeVar

from disagg_exporter.capacity.curves.curve import MOST_RATES, Curve, LearnedLimits, Point
from disagg_exporter.capacity.curves.limits import (
    KNEE_SHARE,
    batch_curve,
    enough,
    find_batch,
    find_knee,
)
from disagg_exporter.capacity.curves.rates import rate_curve
from disagg_exporter.capacity.curves.utilization import (
    CONCLUDE_EVERY_NS,
    WINDOW_NS,
    Load,
    LoadTally,
    LoadWindow,
    load_of,
)
from disagg_exporter.capacity.stream import StreamLoad, with_other_servers
from disagg_exporter.capacity.work import RecordStretch, StreamInbox
from disagg_exporter.model import (
    SECOND_NS,
    CurveSample,
    DecodeLimit,
    EnginePage,
    LimitConfidence,
    PrefillLimit,
    StreamKey,
)

SMOOTH_EVERY_NS = 60 * SECOND_NS
"""Interval at which a known knee is recomputed: smoothing takes milliseconds."""
BEATING_NS = 5 * SECOND_NS
"""A stream that is silent for longer missed several heartbeats: its process may have ended."""
SILENT_NS = 30 * SECOND_NS
"""A stream that is silent for this long has ended."""
STUCK_NS = 60 * SECOND_NS
"""A step that lasts longer than this gives no usable rate."""
MOST_STREAMS = 1024

_Name = tuple[int, int, int]
T = TypeVar("T")


class StepCapacity:
    """Learns from the records of all ranks of one engine, through all its processes."""

    def __init__(self, itl_seconds: float) -> None:
        self.load: Load | None = None
        self.prefill: PrefillLimit | None = None
        self._itl_seconds = itl_seconds
        self.prefill_curve: tuple[CurveSample, ...] = ()
        self._find_decode = _when_read(find_batch, (), 0.0)
        self._sample_decode = _when_read(batch_curve, (), 0.0)
        self._conclude_ns = self._smooth_ns = 0
        self._gap_seconds = 0.0
        self._prefill_curve = Curve()
        self._decode_curve = Curve()
        self._streams: dict[_Name, StreamLoad] = {}

    @property
    def decode(self) -> DecodeLimit | None:
        """The limit of decode; None while too few steps were observed."""
        return self._find_decode()

    @property
    def decode_curve(self) -> tuple[CurveSample, ...]:
        """The time from token to token by the batch."""
        return self._sample_decode()

    def ingest(self, key: StreamKey, inbox: StreamInbox) -> list[tuple[StreamLoad, RecordStretch]]:
        """Add what one stream sent; return the stretches to pass to `learn`."""
        name = (key.pid, key.incarnation, key.engine_index)
        stream = self._streams.get(name)
        if stream is None:
            if len(self._streams) >= MOST_STREAMS:
                return []
            stream = self._streams[name] = StreamLoad(self._prefill_curve, self._decode_curve)
        if inbox.overlapped and not inbox.held_totals:
            # From record to record of one server says nothing if another has records of the rank.
            stream.teaches = not any(
                other is not stream and rank == key.engine_index and other.recorded_ns
                for (_, _, rank), other in self._streams.items()
            )
        return [(stream, stretch) for stretch in stream.ingest(inbox)]

    def advance(self, now_ns: int) -> None:
        """Update load and limits for the second that has passed."""
        servers = Counter(rank for (_, _, rank), each in self._streams.items() if each.recorded_ns)
        for name, stream in list(self._streams.items()):
            stream.end_second(now_ns, is_shared=servers[name[2]] > 1)
            if now_ns - stream.received_ns > SILENT_NS:
                del self._streams[name]
        ranks: defaultdict[int, list[StreamLoad]] = defaultdict(list)
        for (_, _, rank), stream in self._streams.items():
            if now_ns - stream.mark_ns <= STUCK_NS:
                ranks[rank].append(stream)
        # Of several API servers each receives a part of a rank's steps. The state that the last to
        # report received is the rank's; the steps of all add up.
        latest = {
            rank: max(streams, key=attrgetter("recorded_ns")) for rank, streams in ranks.items()
        }
        self.load = load_of(
            with_other_servers(stream, _others(stream, ranks[rank], now_ns))
            for rank, stream in latest.items()
        )
        gaps = [stream.gap_seconds for stream in latest.values() if stream.gap_seconds is not None]
        self._gap_seconds = max(gaps, default=self._gap_seconds)
        if now_ns >= self._conclude_ns:
            self._conclude_ns = now_ns + CONCLUDE_EVERY_NS
            self._conclude(now_ns)

    def save(self, now_ns: int) -> LearnedLimits:
        """Return what the limits are read off, as plain values."""
        return LearnedLimits(
            self._prefill_curve.save(now_ns), self._decode_curve.save(now_ns), self._gap_seconds
        )

    def restore(self, saved: LearnedLimits, now_ns: int) -> None:
        """Replace what is known with what was saved; the limits are available at once."""
        self._prefill_curve.restore(saved.prefill, now_ns)
        self._decode_curve.restore(saved.decode, now_ns)
        self._gap_seconds = saved.gap_seconds
        self._smooth_ns = now_ns  # a knee known so far is of other steps
        self._conclude(now_ns)

    def _knows_knee(self) -> bool:
        return self.prefill is not None and self.prefill.knee_tokens is not None

    def _conclude(self, now_ns: int) -> None:
        if not self._knows_knee() or now_ns >= self._smooth_ns:
            self._smooth_ns = now_ns + SMOOTH_EVERY_NS
            points = enough(self._prefill_curve.points(now_ns))
            curve = rate_curve(points, self._gap_seconds) if points else None
            self.prefill_curve = curve.samples() if curve else ()
            self.prefill = find_knee(points, self._gap_seconds, curve)
        batches = self._decode_curve.points(now_ns)
        self._find_decode = _when_read(find_batch, batches, self._itl_seconds - self._gap_seconds)
        self._sample_decode = _when_read(batch_curve, batches, self._gap_seconds)


def _when_read(
    compute: Callable[[Sequence[Point], float], T], points: Sequence[Point], seconds: float
) -> Callable[[], T]:
    """Compute a figure when it is read first: some never are, and each takes a while."""
    return cache(partial(compute, points, seconds))


def _others(latest: StreamLoad, streams: Sequence[StreamLoad], now_ns: int) -> Sequence[StreamLoad]:
    """Return what other API servers report of a rank; a former process beats no more."""
    return [
        stream
        for stream in streams
        if stream is not latest and stream.recorded_ns and now_ns - stream.received_ns <= BEATING_NS
    ]


SATURATED_NS = 10 * SECOND_NS
"""Requests must wait this long without a break before the rate counts as the engine's best."""
ENOUGH_SATURATED = 3
STALE_NS = 30 * SECOND_NS
_STEADY_RATIO = 0.1


class PageCapacity:
    """Learns from consecutive pages what happened between them.

    * Between pages with equally many running requests, and no prompt computed, each step writes one
      token of each: requests × seconds ÷ tokens is the time of a step, and a sample of it.
    * Pages do not give the size of prefill steps, so no knee can be found. But while requests wait
      all the time, an engine computes as fast as it can; nine tenths of that rate, once it was
      observed three times for ten seconds each, stand for the rate at the knee.
    """

    def __init__(self, itl_seconds: float) -> None:
        self.load: Load | None = None
        self.prefill: PrefillLimit | None = None
        self._itl_seconds = itl_seconds
        self._find_decode = _when_read(find_batch, (), 0.0)
        self._curve = Curve()
        self._window = LoadWindow()
        self._page: EnginePage | None = None
        self._rates: deque[float] = deque(maxlen=MOST_RATES)
        self._waited_ns = 0
        self._waited_tokens = 0.0
        self._conclude_ns = 0

    @property
    def decode(self) -> DecodeLimit | None:
        """The limit of decode; None while too few steps were observed."""
        return self._find_decode()

    def ingest(self, page: EnginePage | None, now_ns: int) -> None:
        """Add the engine's last page, which may be the same as before."""
        before, self._page = self._page, page
        if page is None or now_ns - page.t_ns > STALE_NS:
            self.load = None
            return
        if before is None or page.t_ns == before.t_ns:
            return
        self._read(before, page)
        self.load = load_of([self._window.total])
        if now_ns < self._conclude_ns:
            return
        self._conclude_ns = now_ns + CONCLUDE_EVERY_NS
        self._conclude(now_ns)

    def save(self, now_ns: int) -> LearnedLimits:
        """Return what the limits are read off, as plain values."""
        return LearnedLimits(page_decode=self._curve.save(now_ns), page_rates=tuple(self._rates))

    def restore(self, saved: LearnedLimits, now_ns: int) -> None:
        """Replace what is known with what was saved; the limits are available at once."""
        self._curve.restore(saved.page_decode, now_ns)
        self._rates = deque(saved.page_rates, maxlen=MOST_RATES)
        self._conclude(now_ns)

    def _conclude(self, now_ns: int) -> None:
        points = self._curve.points(now_ns)
        self._find_decode = _when_read(find_batch, points, self._itl_seconds)
        enough = len(self._rates) >= ENOUGH_SATURATED
        rate = median(self._rates) if enough else None
        self.prefill = (
            PrefillLimit(KNEE_SHARE * rate, LimitConfidence.ONE) if rate is not None else None
        )

    def _read(self, before: EnginePage, page: EnginePage) -> None:
        length_ns = page.t_ns - before.t_ns
        prefilled = _grown(before.computed_tokens_total, page.computed_tokens_total)
        written = _grown(before.generation_tokens_total, page.generation_tokens_total)
        if (
            not 0 < length_ns < WINDOW_NS
            or prefilled is None
            or written is None
            or before.running is None
            or page.running is None
            or page.kv_usage_ratio is None
            or page.ranks != before.ranks
        ):
            self._window, self._waited_ns = LoadWindow(), 0
            return
        running = (before.running + page.running) / 2
        waited = bool(before.waiting and page.waiting)
        self._window.add(
            LoadTally(
                length_ns=length_ns,
                prefill_tokens=prefilled,
                batch_ns=running * length_ns if written else 0.0,
                kv_ns=page.kv_usage_ratio * length_ns,
                blocked_ns=length_ns if waited else 0,
                waiting_ns=length_ns if waited else 0,
            )
        )
        steady = abs(page.running - before.running) <= _STEADY_RATIO * running
        if written and steady and not prefilled:
            self._curve.add(running, running * length_ns / 1e9 / written, page.t_ns)
        self._saturate(length_ns, prefilled, waited=waited)

    def _saturate(self, length_ns: int, prefilled: float, *, waited: bool) -> None:
        if not waited:
            self._waited_ns, self._waited_tokens = 0, 0.0
            return
        self._waited_ns += length_ns
        self._waited_tokens += prefilled
        if self._waited_ns >= SATURATED_NS:
            if self._waited_tokens:
                self._rates.append(self._waited_tokens / self._waited_ns * 1e9)
            self._waited_ns, self._waited_tokens = 0, 0.0


def _grown(before: float | None, after: float | None) -> float | None:
    """Return the growth of a counter; None where it is absent, or was reset."""
    if before is None or after is None or after < before:
        return None
    return after - before
