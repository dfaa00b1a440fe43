"""What is known of the costs of an engine that tells sums only, as plain values."""

from __future__ import annotations

from dataclasses import dataclass, replace

from disagg_exporter.attribution.cost_model.bounds import MOST_COUNT, MOST_SECONDS, check_range

MOST_STRETCHES = 240
"""So many stretches are remembered, a row of sums for each."""
RECENT = 24
_MOST_SEEN = 2**60
_MOST_BUCKETS = 1024
_MOST_EXPERTS = 16


@dataclass(frozen=True, slots=True)
class LearnedShares:
    """What `sources.PhaseShares` knows of one engine; one made of it divides the same.

    `rows` are the sums over stretches: steps, prompts, tokens of prefill and of decode, steps by
    the time between tokens, then busy seconds and all seconds; `pending` those of the stretch that
    has begun. `costs` are seconds for each step, request and token, then for the experts.
    `tokens_per_second` and `first_slow` say how prompts are cut (`sources.stretchsteps.Cutting`).

    Raises:
        ValueError: The values are not those of such costs.
    """

    stretches: int
    rows: tuple[tuple[float, ...], ...]
    pending: tuple[float, ...]
    costs: tuple[float, ...] | None
    tokens_per_second: float
    first_slow: int
    next_fit: int
    errors: tuple[float, ...]
    seconds_seen: float

    def __post_init__(self) -> None:
        """Check what no type can say."""
        if len(self.rows) > MOST_STRETCHES or len(self.errors) > RECENT:
            raise ValueError(f"more than {MOST_STRETCHES} rows or {RECENT} errors")
        if {len(row) for row in self.rows} - {len(self.pending)}:
            raise ValueError("rows: they differ in length")
        for row in self.rows:
            check_range("rows", filter(None, row), 1e-9, MOST_COUNT)
            check_range("rows: steps", row[:1], 1e-9, MOST_COUNT)
            check_range("rows: busy seconds", row[-2:-1], 1e-3, MOST_SECONDS)
        check_range("pending", filter(None, self.pending), 1e-9, MOST_COUNT)
        if self.costs is not None:
            if not 3 <= len(self.costs) <= _MOST_EXPERTS:
                raise ValueError(f"costs: {len(self.costs)} of them, expected 3 or more")
            check_range("costs", filter(None, self.costs), 1e-60, MOST_SECONDS)
        check_range("tokens_per_second", (self.tokens_per_second,), 0, MOST_COUNT)
        check_range("first_slow", (self.first_slow,), 0, _MOST_BUCKETS)
        check_range("stretches", (self.stretches,), len(self.rows), _MOST_SEEN)
        check_range("next_fit", (self.next_fit,), 0, self.stretches + MOST_STRETCHES)
        check_range("errors", self.errors, 0, MOST_COUNT)
        check_range("seconds_seen", (self.seconds_seen,), 0, MOST_COUNT)

    def lighter(self) -> LearnedShares:
        """Return it with the later half of its rows; it divides the same."""
        return replace(self, rows=self.rows[(len(self.rows) + 1) // 2 :])
