"""How an engine's busy time divides between the phases when only its token counts are known.

Learned per engine from stretches of some seconds: busy seconds ≈ a × prefill tokens + b × decode
tokens, a and b not negative. Until that has earned trust, by token count. Counters lump all chunks
of a long prompt into the moment it ends, so prefill work that finds no room in its stretch is
carried into the next ones.
"""

from __future__ import annotations

from collections import deque
from operator import mul

from disagg_exporter.model import Role, Split
from disagg_exporter.nnls import solve

# Long enough that most prompts begin and end within one; short enough to follow a change of load.
LEARN_SECONDS = 10.0
# What was seen 120 stretches ago counts a third.
_KEEP = 1 - 1 / 120
_LEAST_BUSY_SECONDS = 0.01
_ENOUGH = 12
_RECENT = 24
_TRUSTED_RESIDUAL = 0.25
# A prompt computed for longer than this is no prompt: what is carried is then forgotten.
_MOST_CARRIED_SECONDS = 60.0


class PhaseShares:
    """One engine's token costs, and what prefill work it has still to show.

    `stretches` is how many it has learned from.
    """

    def __init__(self) -> None:
        self._gram = [[0.0, 0.0], [0.0, 0.0]]
        self._moments = [0.0, 0.0]
        self._seconds_per_token = (0.0, 0.0)
        self.stretches = 0
        self._errors: deque[float] = deque(maxlen=_RECENT)
        self._seconds = self._busy = 0.0
        self._tokens = [0, 0]
        self._carried_seconds = 0.0

    def share(
        self, role: Role, prefill_tokens: int, decode_tokens: int, busy_seconds: float
    ) -> float:
        """Return how much of a stretch's busy time was prefill.

        Busy without a token means that a prompt is being computed: its tokens are counted when it
        ends. An engine whose role says otherwise is believed.
        """
        if not prefill_tokens and not decode_tokens and not self._carried_seconds:
            return 0.0 if role is Role.DECODE else 1.0
        prefill_cost, decode_cost = self._costs()
        prefill_seconds = prefill_cost * prefill_tokens + self._carried_seconds
        decode_seconds = decode_cost * decode_tokens
        if not self.trusted:
            return prefill_seconds / (prefill_seconds + decode_seconds)
        # Decode goes on all the time and is counted as it happens: it has its room first.
        room_seconds = max(busy_seconds - decode_seconds, 0.0)
        shown_seconds = min(prefill_seconds, room_seconds)
        self._carried_seconds = min(prefill_seconds - shown_seconds, _MOST_CARRIED_SECONDS)
        known_seconds = shown_seconds + min(decode_seconds, busy_seconds)
        return shown_seconds / known_seconds if known_seconds else float(bool(prefill_tokens))

    def learn(
        self, prefill_tokens: int, decode_tokens: int, busy_seconds: float, seconds: float
    ) -> None:
        """Take what a stretch of `seconds` held."""
        self._tokens[0] += prefill_tokens
        self._tokens[1] += decode_tokens
        self._busy += busy_seconds
        self._seconds += seconds
        if self._seconds < LEARN_SECONDS:
            return
        features = (float(self._tokens[0]), float(self._tokens[1]))
        busy, self._busy, self._seconds, self._tokens = self._busy, 0.0, 0.0, [0, 0]
        if not any(features) or busy < _LEAST_BUSY_SECONDS:
            return
        if self.stretches >= _ENOUGH // 2:
            foreseen = sum(map(mul, features, self._seconds_per_token))
            self._errors.append(abs(foreseen - busy) / busy)
        # By the relative error: a quiet stretch tells as much of the costs as a full one.
        for i, x in enumerate(features):
            self._moments[i] = self._moments[i] * _KEEP + x / busy
            for j, y in enumerate(features):
                self._gram[i][j] = self._gram[i][j] * _KEEP + x * y / busy**2
        prefill, decode = solve(self._gram, self._moments)
        self._seconds_per_token = prefill, decode
        self.stretches += 1

    @property
    def residual_ratio(self) -> float | None:
        """Mean error of the prediction of a stretch's busy time, over that time."""
        return sum(self._errors) / len(self._errors) if self._errors else None

    @property
    def trusted(self) -> bool:
        """Whether the costs are known well enough to divide by."""
        residual = self.residual_ratio
        learned = self.stretches >= _ENOUGH and all(self._seconds_per_token)
        return learned and residual is not None and residual <= _TRUSTED_RESIDUAL

    @property
    def split(self) -> Split:
        """How the engine's busy time is divided now."""
        return Split.MODEL if self.trusted else Split.TOKENS

    def _costs(self) -> tuple[float, float]:
        if not self.trusted:
            return 1.0, 1.0
        return self._seconds_per_token
