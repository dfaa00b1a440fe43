"""What a pod may say of its steps: about itself whatever it likes, but not without bounds.

A pod is believed about its own engine; it can lie there and nowhere else. What would cost us
memory, or move what is computed over several engines, is turned away.
"""

from __future__ import annotations

from disagg_exporter.model import StreamKey
from disagg_exporter.step_messages import Message

# Ranks of one pod, and how often its engine may begin anew: at once, in the long run, ever.
MAX_RANKS = 64
STREAMS_AT_ONCE = 64
SECONDS_A_STREAM = 30.0
MAX_STREAMS = 1024

# A first prefill may take minutes; a stalled daemon hears of it late.
MAX_STEP_SECONDS = 600.0
OLDEST_SECONDS = 600.0
# The kernel's clock is one for all containers; this much is rounding.
AHEAD_SECONDS = 0.1

_LARGEST_TOTAL = 1 << 53


class Gate:
    """Lets one pod's messages pass or turns them away.

    `refused` counts the latter; `flags` are the `wire` flags of the last that passed.
    """

    def __init__(self, now_ns: int) -> None:
        self._began_ns = now_ns
        self._streams: set[StreamKey] = set()
        self.refused = 0
        self.flags = 0

    def admits(self, message: Message, now_ns: int) -> bool:
        """Say whether a message may be passed on."""
        admitted = self._sound(message, now_ns) and self._has_room(message.key, now_ns)
        if admitted:
            self.flags = message.flags
        else:
            self.refused += 1
        return admitted

    def _sound(self, message: Message, now_ns: int) -> bool:
        age_seconds = (now_ns - message.t_ns) / 1e9
        if not -AHEAD_SECONDS <= age_seconds <= OLDEST_SECONDS:
            return False
        step = message.step
        if step is None:
            return True
        totals = step.totals
        return (
            step.elapsed_ns <= MAX_STEP_SECONDS * 1e9
            # This way round, a ratio that is no number is turned away as well.
            and 0.0 <= step.kv_usage_ratio <= 1.0
            and max(*totals.steps, *totals.elapsed_ns) <= _LARGEST_TOTAL
            and max(totals.prefill_tokens, totals.decode_tokens, totals.drops) <= _LARGEST_TOTAL
            and step.sequence <= _LARGEST_TOTAL
        )

    def _has_room(self, key: StreamKey, now_ns: int) -> bool:
        if key in self._streams:
            return True
        lived_seconds = (now_ns - self._began_ns) / 1e9
        allowed = min(STREAMS_AT_ONCE + lived_seconds / SECONDS_A_STREAM, MAX_STREAMS)
        if key.engine_index >= MAX_RANKS or len(self._streams) >= allowed:
            return False
        self._streams.add(key)
        return True
