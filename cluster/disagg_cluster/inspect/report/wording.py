"""Figures as people read them, the same in every form of the report."""

from __future__ import annotations

from disagg_cluster.inspect.report.coverage import Incident
from disagg_cluster.inspect.report.figures import PHASES, WHOLE, Account, Report
from disagg_cluster.inspect.report.past import utc
from disagg_exporter.model.counted import agreeing, counted

ABSENT = "-"
COVERAGE_HEADS = ("GPU time", "GPU-hours", "Share")
_LEAST = 0.001

REASONS = {
    "no_engine": "no engine on the GPU",
    "starting": "engine starting",
    "draining": "engine draining",
    "no_request": "no request",
    "kv_wait": "waiting for KV from another engine",
    "host_gap": "work pending, nothing running",
}
"""Meanings of the reasons of idle time (docs/accounting.md, A5)."""


UNKNOWN = {
    "no_reading": "unobserved: neither engine nor device reported anything",
    "no_record": "unobserved: the engine reported nothing in time",
    "no_daemon": "unobserved: no daemon ran",
}
"""Meanings of the reasons of unobserved time (docs/accounting.md, A6 and A11)."""


def percent(ratio: float | None) -> str:
    """Return a ratio as a percentage."""
    return ABSENT if ratio is None else f"{100 * ratio:.1f} %"


def almost(ratio: float) -> str:
    """Return a ratio as a percentage that is 100 only for all, and 0 only for nothing."""
    if ratio in (0.0, 1.0):
        return percent(ratio)
    return f"{min(max(100 * ratio, 0.1), 99.9):.1f} %"


def hours(value: float) -> str:
    """Return GPU-hours, with as many digits as are meaningful."""
    return _at_least(value, 1)


def amount(value: float | None, currency: str | None) -> str:
    """Return a sum of money."""
    if value is None or currency is None:
        return ABSENT
    return f"{value:,.0f} {currency}" if abs(value) >= 100 else f"{value:,.2f} {currency}"


def count(value: float | None) -> str:
    """Return a token count: thousands, millions, billions."""
    if value is None:
        return ABSENT
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.2f} {unit}"
    return f"{value:.0f}"


def energy(kilowatt_hours: float | None) -> str:
    """Return energy in kWh."""
    return ABSENT if kilowatt_hours is None else _at_least(kilowatt_hours, 2)


def span(seconds: float) -> str:
    """Return a duration."""
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    big, small = ("h", "min") if minutes < 48 * 60 else ("d", "h")
    whole, rest = divmod(minutes, 60) if big == "h" else divmod(minutes // 60, 24)
    return f"{whole} {big} {rest} {small}" if rest else f"{whole} {big}"


def title(report: Report) -> str:
    """Return the title of the report."""
    return "Prefill and decode" + (f" in {report.cluster}" if report.cluster else "")


def period(report: Report) -> str:
    """Return the period."""
    period = report.period
    return f"{utc(period.start_seconds)} to {utc(period.end_seconds)} UTC"


def summary(report: Report) -> list[tuple[str, str, str]]:
    """Return the main figures: name, value, explanation."""
    whole = report.all_gpu_hours
    ratio = report.prefill_decode_ratio
    known = report.coverage
    found = [
        (
            "Accounted for",
            ABSENT if known is None else almost(known.accounted_ratio),
            "of GPU time",
        ),
        ("Prefill share", percent(report.prefill_share_ratio), "of the busy GPU time"),
        ("Prefill : decode", ABSENT if ratio is None else f"{ratio:.2f}", "GPU-hours"),
        ("Occupancy", percent(report.occupancy_ratio), "busy, which is not full"),
        ("GPU time", hours(whole), "GPU-hours observed"),
        ("Idle", hours(report.gpu_hours["idle"]), "GPU-hours"),
    ]
    if report.energy_kilowatt_hours:
        found.append(("Energy", energy(sum(report.energy_kilowatt_hours.values())), "kWh"))
    if report.cost is not None:
        priced = 1.0 if report.priced_ratio is None else report.priced_ratio
        part = "all GPU time" if priced > WHOLE else f"{almost(priced)} of the GPU time"
        found.append(("Cost", amount(report.cost, report.currency), f"of {part}"))
    return found


def coverage(report: Report) -> str:
    """Return how much of the GPU time is known, or of the period if GPU counts are unknown."""
    known = report.coverage
    if known is None:
        return _samples(report.covered_ratio)
    text = (
        f"{almost(known.accounted_ratio)} of the GPU time is accounted for: "
        f"{hours(known.accounted_gpu_hours)} of {hours(known.expected_gpu_hours)} GPU-hours of "
        f"{known.gpus:g} {'GPU' if known.gpus == 1 else 'GPUs'} on {counted(known.nodes, 'node')}."
    )
    if known.nodes_part_time:
        text += (
            f" {known.nodes_part_time} of them "
            f"{agreeing(known.nodes_part_time, 'was', 'were')} not seen all the time."
        )
    if known.accounted_ratio < WHOLE:
        text += " What is not is in no sum, and a gap in the plots where nothing is known."
    return text


def coverage_rows(report: Report) -> list[tuple[str, str, str]]:
    """Return the uses of all GPU time: GPU-hours and shares."""
    known = report.coverage
    if known is None:
        return []
    parts = [
        ("accounted for by phase", known.accounted_gpu_hours),
        *((UNKNOWN.get(reason, f"unobserved: {reason}"), of) for reason, of in known.unobserved),
        ("missing: not counted, or not scraped", known.missing_gpu_hours),
    ]
    return [
        (name, hours(of) if of else "0", almost(of / known.expected_gpu_hours))
        for name, of in parts
    ]


def _samples(ratio: float) -> str:
    unknown = "How many GPUs there were is not recorded."
    if ratio > WHOLE:
        return f"Prometheus has samples for the whole period. {unknown}"
    return (
        f"Prometheus has samples for {percent(ratio)} of the period. What is missing is in no sum, "
        f"and a gap in the plots. {unknown}"
    )


PHASE_HEADS = ("Phase", "GPU-hours", "Share")
IDLE_HEADS = ("Why", "GPU-hours", "Cost")
ENERGY_HEADS = ("Phase", "kWh")


def phase_rows(report: Report) -> list[tuple[str, ...]]:
    """Return the GPU time of each phase, and its share of all."""
    whole = report.all_gpu_hours
    return [
        (phase, hours(of), percent(of / whole if whole else None))
        for phase in PHASES
        for of in [report.gpu_hours[phase]]
    ]


def idle_rows(report: Report) -> list[tuple[str, ...]]:
    """Return why GPUs were idle, for how long, and what it cost."""
    return [
        (REASONS.get(it.name, it.name), hours(it.gpu_hours), amount(it.cost, report.currency))
        for it in report.idle
    ]


def energy_rows(report: Report) -> list[tuple[str, ...]]:
    """Return the energy of each phase, the largest first."""
    by_phase = sorted(report.energy_kilowatt_hours.items(), key=lambda item: -item[1])
    return [(phase, energy(kilowatt_hours)) for phase, kilowatt_hours in by_phase]


ACCOUNT_HEADS = (
    *("Model", "Namespace", "Prefill hours", "Decode hours", "Idle hours", "Other hours"),
    *("Prefill tokens", "Decode tokens", "kWh", "Cost"),
)


def account_rows(report: Report) -> list[tuple[str, ...]]:
    """Return what each model used."""
    return [_account(each, report.currency) for each in report.accounts]


def _account(row: Account, currency: str | None) -> tuple[str, ...]:
    return (
        row.model_name or "(no model)",
        row.namespace or ABSENT,
        *(hours(row.gpu_hours[phase]) for phase in ("prefill", "decode", "idle", "unattributed")),
        *(count(row.tokens[phase]) for phase in ("prefill", "decode")),
        energy(row.kilowatt_hours),
        amount(row.cost, currency),
    )


INCIDENT_HEADS = ("Severity", "Alert", "Whose", "From (UTC)", "To (UTC)", "Length")


def incident_rows(report: Report, most: int) -> list[tuple[str, ...]]:
    """Return the first incidents, at most `most`."""
    return [_incident(each) for each in report.incidents[:most]]


def _incident(row: Incident) -> tuple[str, ...]:
    start = ("before " if row.open_start else "") + utc(row.start_seconds)
    end = "still firing" if row.open_end else utc(row.end_seconds)
    length = ("over " if row.open_start or row.open_end else "") + span(row.length_seconds)
    return (row.severity or ABSENT, row.alert, row.whose or ABSENT, start, end, length)


def _at_least(value: float, decimals: int) -> str:
    return _digits(value, decimals) if value == 0 or abs(value) >= _LEAST else "below 0.001"


def _digits(value: float, decimals: int) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:,.{decimals}f}" if value >= 1 else f"{value:.2g}"
