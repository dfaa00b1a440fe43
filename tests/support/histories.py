"""Histories as Prometheus would return them, small enough for mental arithmetic."""

from __future__ import annotations

from collections.abc import Mapping

from disagg_cluster.inspect.report.past import (
    ACCOUNTED,
    COST,
    ENERGY,
    IDLE,
    SHOWBACK,
    SPLIT,
    TOKENS,
    UNOBSERVED,
    Firing,
    History,
    Key,
    Period,
    RuleSeries,
)

HOUR = 3600
PERIOD = Period(1_763_568_000, 1_763_568_000 + 4 * HOUR, HOUR)
"""Four buckets of an hour."""

ALERT = {
    "__name__": "ALERTS",
    "alertname": "DisaggWorkerDown",
    "alertstate": "firing",
    "severity": "ticket",
    "node": "gpu-7",
    "worker": "decode-0",
}


def curve(rows: Mapping[Key, tuple[float | None, ...]], covered: tuple[float, ...]) -> RuleSeries:
    """Return a curve whose rows are means, such as GPUs or watts, over the covered hours."""
    return RuleSeries(
        {
            key: tuple(
                None if value is None else value * HOUR * part
                for value, part in zip(row, covered, strict=True)
            )
            for key, row in rows.items()
        },
        covered,
    )


def four_hours(**changes: RuleSeries | None) -> History:
    """Return eight GPUs over four hours; the second hour is a gap, half of the third is known.

    In the known hours, 2 GPUs prefill, 3 decode, 3 are idle.
    """
    covered = (1.0, 0.0, 0.5, 1.0)

    def gap(value: float) -> tuple[float | None, ...]:
        return (value, None, value, value)

    namespace = ("llama", "search")
    curves: dict[str, RuleSeries | None] = {
        SPLIT: curve(
            {
                ("prefill", "prefill"): gap(2.0),
                ("prefill", "idle"): gap(2.0),
                ("decode", "decode"): gap(3.0),
                ("decode", "idle"): gap(1.0),
            },
            covered,
        ),
        IDLE: curve({("no_request",): gap(2.0), ("kv_wait",): gap(1.0)}, covered),
        SHOWBACK: curve(
            {
                (*namespace, "prefill"): gap(2.0),
                (*namespace, "decode"): gap(3.0),
                ("", "", "idle"): gap(3.0),
            },
            covered,
        ),
        TOKENS: curve({(*namespace, "prefill"): gap(1000.0)}, covered),
        ENERGY: curve(
            {(*namespace, "prefill"): gap(1000.0), ("", "", "idle"): gap(200.0)}, covered
        ),
        COST: curve(
            {
                (*namespace, "prefill", "USD"): gap(4.0),
                (*namespace, "decode", "USD"): gap(6.0),
                ("", "", "idle", "USD"): gap(6.0),
            },
            covered,
        ),
    }
    curves |= changes
    start = float(PERIOD.start_seconds)
    firing = Firing(ALERT, tuple(start + 600 + 60 * n for n in range(10)))
    known = {rule: each for rule, each in curves.items() if each is not None}
    return History(PERIOD, known, (firing,), 60.0)


def half_a_week(**changes: RuleSeries | None) -> History:
    """Return two nodes with four GPUs each; one daemon was down for the second half.

    Of 32 GPU-hours in four hours 22 are counted, 2 unobserved and 8 missing.
    """
    curves: dict[str, RuleSeries | None] = {
        SPLIT: curve({("mixed", "idle"): (7.0, 7.0, 4.0, 4.0)}, (1.0,) * 4),
        ACCOUNTED: curve({(): (7.0, 7.0, 4.0, 4.0)}, (1.0,) * 4),
        UNOBSERVED: curve(
            {("no_daemon",): (1.0, 0.5, 0.0, 0.0), ("no_reading",): (0.0, 0.5, 0.0, 0.0)},
            (1.0,) * 4,
        ),
    }
    curves |= changes
    known = {rule: each for rule, each in curves.items() if each is not None}
    gpus = {("c", "a"): (4.0,) * 4, ("c", "b"): (4.0, 4.0, None, None)}
    return History(PERIOD, known, (), 60.0, gpus)
