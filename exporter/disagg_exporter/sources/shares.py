"""How an engine's busy time divides between the phases when only its token counts are known.

Learned per engine from stretches of some seconds: busy seconds ≈ a × steps + b × prefill tokens +
c × decode tokens, none of them negative. What a step costs anyway, a, is decode's in steps without
a prompt and shared in the others (docs/decisions/0005-mixed-steps.md). Until that has earned trust,
by token count. Counters lump all chunks of a long prompt into the moment it ends, so prefill work
that finds no room in its stretch is carried into the next ones.
"""

from __future__ import annotations

from collections import deque
from math import exp
from operator import mul
from typing import NamedTuple

from disagg_exporter.model import Role, Split
from disagg_exporter.nnls import solve

# Long enough that most prompts begin and end within one, short enough that their number varies: the
# less is averaged over, the better prompts and steps are told apart.
LEARN_SECONDS = 10.0
_LEAST_LEARN_SECONDS, _LEARN_PROMPTS = 1.0, 8
_MEMORY_SECONDS = 1200.0
_LEAST_BUSY_SECONDS = 0.01
_ENOUGH = 12
_RECENT = 24
_TRUSTED_RESIDUAL = 0.25
# A prompt computed for longer than this is no prompt: what is carried is then forgotten.
_MOST_CARRIED_SECONDS = 60.0


class Counts(NamedTuple):
    """What an engine counted over a stretch; `steps` and `prompts` are 0 where nobody knows."""

    prefill_tokens: int = 0
    decode_tokens: int = 0
    steps: float = 0.0
    prompts: float = 0.0

    def and_then(self, more: Counts) -> Counts:
        """Return the counts of both stretches together."""
        return Counts(
            self.prefill_tokens + more.prefill_tokens,
            self.decode_tokens + more.decode_tokens,
            self.steps + more.steps,
            self.prompts + more.prompts,
        )


class PhaseShares:
    """One engine's token costs, and what prefill work it has still to show.

    `stretches` is how many it has learned from.
    """

    def __init__(self) -> None:
        self._gram = [[0.0] * 3 for _ in range(3)]
        self._moments = [0.0] * 3
        self._costs = (0.0, 0.0, 0.0)
        self.stretches = 0
        self._errors: deque[float] = deque(maxlen=_RECENT)
        self._seconds_seen = self._busy = 0.0
        self._counts = Counts()
        self._carried_seconds = 0.0

    def share(self, role: Role, counts: Counts, busy_seconds: float) -> float:
        """Return how much of a stretch's busy time was prefill.

        Busy without a token means that a prompt is being computed: its tokens are counted when it
        ends. An engine whose role says otherwise is believed.
        """
        prefill_tokens, decode_tokens, *_ = counts
        trusted = self.trusted
        if not trusted:
            self.begin_anew()
        if not prefill_tokens and not decode_tokens and not self._carried_seconds:
            return 0.0 if role is Role.DECODE else 1.0
        if not trusted:
            return prefill_tokens / (prefill_tokens + decode_tokens)
        prefill_seconds, decode_seconds = self._seconds(counts)
        prefill_seconds += self._carried_seconds
        # Decode goes on all the time and is counted as it happens: it has its room first.
        room_seconds = max(busy_seconds - decode_seconds, 0.0)
        shown_seconds = min(prefill_seconds, room_seconds)
        self._carried_seconds = min(prefill_seconds - shown_seconds, _MOST_CARRIED_SECONDS)
        known_seconds = shown_seconds + min(decode_seconds, busy_seconds)
        return shown_seconds / known_seconds if known_seconds else float(bool(prefill_tokens))

    def begin_anew(self) -> None:
        """Carry nothing on: another process came, or what was carried is believed no longer."""
        self._carried_seconds = 0.0

    def learn(self, counts: Counts, busy_seconds: float, seconds: float) -> None:
        """Take what a stretch of `seconds` held."""
        self._counts = so_far = self._counts.and_then(counts)
        self._busy += busy_seconds
        self._seconds_seen += seconds
        enough = self._seconds_seen >= _LEAST_LEARN_SECONDS and so_far.prompts >= _LEARN_PROMPTS
        if not enough and self._seconds_seen < LEARN_SECONDS:
            return
        features = (so_far.steps, float(so_far.prefill_tokens), float(so_far.decode_tokens))
        keep = exp(-self._seconds_seen / _MEMORY_SECONDS)
        busy, self._busy, self._seconds_seen, self._counts = self._busy, 0.0, 0.0, Counts()
        if not any(features[1:]) or busy < _LEAST_BUSY_SECONDS:
            return
        if self.stretches >= _ENOUGH // 2:
            foreseen = sum(map(mul, features, self._costs))
            self._errors.append(abs(foreseen - busy) / busy)
        # By the relative error: a quiet stretch tells as much of the costs as a full one.
        for i, x in enumerate(features):
            self._moments[i] = self._moments[i] * keep + x / busy
            for j, y in enumerate(features):
                self._gram[i][j] = self._gram[i][j] * keep + x * y / busy**2
        step, prefill, decode = solve(self._gram, self._moments)
        self._costs = step, prefill, decode
        self.stretches += 1

    @property
    def residual_ratio(self) -> float | None:
        """Mean error of the prediction of a stretch's busy time, over that time."""
        return sum(self._errors) / len(self._errors) if self._errors else None

    @property
    def trusted(self) -> bool:
        """Whether the costs are known well enough to divide by."""
        residual = self.residual_ratio
        both_seen = self._gram[1][1] > 0 and self._gram[2][2] > 0
        learned = self.stretches >= _ENOUGH and both_seen and any(self._costs)
        return learned and residual is not None and residual <= _TRUSTED_RESIDUAL

    @property
    def split(self) -> Split:
        """How the engine's busy time is divided now."""
        return Split.MODEL if self.trusted else Split.TOKENS

    def _seconds(self, counts: Counts) -> tuple[float, float]:
        """Return what the prompts of a stretch cost by what is known, and what its decoding."""
        step, prefill, decode = self._costs
        prompts = prefill * counts.prefill_tokens
        written = decode * counts.decode_tokens
        anyway = step * counts.steps
        if not prompts or not counts.steps:
            return prompts, anyway + written
        # So many of the steps have a prompt in them if prompts come at random.
        mixed = 1 - exp(-counts.prompts / counts.steps)
        share = prompts / (prompts + mixed * (anyway + written))
        shared = mixed * anyway * share**2
        return prompts + shared, anyway - shared + written
