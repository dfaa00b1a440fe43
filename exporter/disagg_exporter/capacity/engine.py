"""One engine: the limits its steps have taught, and the load it stands under."""

from __future__ import annotations

from disagg_exporter.capacity.curves.curve import Curve
from disagg_exporter.capacity.curves.itl import find_batch
from disagg_exporter.capacity.curves.knee import find_knee
from disagg_exporter.capacity.curves.learned_limits import LearnedLimits
from disagg_exporter.capacity.curves.utilization import Load, load_of
from disagg_exporter.capacity.curves.window import CONCLUDE_EVERY_NS
from disagg_exporter.capacity.inbox import Told
from disagg_exporter.capacity.stream import Stream
from disagg_exporter.capacity.work import Stretch
from disagg_exporter.model import DecodeLimit, PrefillLimit, StreamKey

SILENT_NS = 30 * 1_000_000_000
"""A stream that tells nothing for so long is no engine's any more."""
STUCK_NS = 60 * 1_000_000_000
"""A step that lasts longer than this is no load that a rate could be taken of."""
MOST_STREAMS = 1024

_Name = tuple[int, int, int]


class EngineFullness:
    """Learns from the records of all ranks of one engine, through all its processes."""

    def __init__(self, itl_seconds: float) -> None:
        self.load: Load | None = None
        self.prefill: PrefillLimit | None = None
        self.decode: DecodeLimit | None = None
        self._itl_seconds = itl_seconds
        self._conclude_ns = 0
        self._gap_seconds = 0.0
        self._prefill_curve = Curve()
        self._decode_curve = Curve()
        self._streams: dict[_Name, Stream] = {}

    def take(self, key: StreamKey, told: Told) -> list[tuple[Stream, Stretch]]:
        """Take what one stream told; return what of it `learn` is to be given."""
        name = (key.pid, key.incarnation, key.engine_index)
        stream = self._streams.get(name)
        if stream is None:
            if len(self._streams) >= MOST_STREAMS:
                return []
            stream = self._streams[name] = Stream(self._prefill_curve, self._decode_curve)
        return [(stream, stretch) for stretch in stream.take(told)]

    def advance(self, now_ns: int) -> None:
        """Draw the conclusions of the second that has passed."""
        for name, stream in list(self._streams.items()):
            stream.end_second(now_ns)
            if now_ns - stream.heard_ns > SILENT_NS:
                del self._streams[name]
        ranks: dict[int, Stream] = {}
        for (_, _, rank), stream in self._streams.items():
            # Of several API servers one alone hears of a rank's steps: who told last.
            told = ranks.get(rank)
            if now_ns - stream.mark_ns <= STUCK_NS and (
                told is None or stream.recorded_ns > told.recorded_ns
            ):
                ranks[rank] = stream
        self.load = load_of(stream.window.total for stream in ranks.values())
        gaps = [stream.gap_seconds for stream in ranks.values() if stream.gap_seconds is not None]
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
        """Go on with what was saved, instead of what is known; the limits are there at once."""
        self._prefill_curve.restore(saved.prefill, now_ns)
        self._decode_curve.restore(saved.decode, now_ns)
        self._gap_seconds = saved.gap_seconds
        self._conclude(now_ns)

    def _conclude(self, now_ns: int) -> None:
        self.prefill = find_knee(self._prefill_curve.points(now_ns), self._gap_seconds)
        target_seconds = self._itl_seconds - self._gap_seconds
        self.decode = find_batch(self._decode_curve.points(now_ns), target_seconds)
