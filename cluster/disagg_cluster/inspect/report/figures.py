"""The figures of a report: sums over its history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from disagg_cluster.inspect.report.coverage import Coverage, Incident, coverage_of, incidents
from disagg_cluster.inspect.report.past import (
    COST,
    ENERGY,
    IDLE,
    SHOWBACK,
    SPLIT,
    TOKENS,
    History,
    Period,
    RuleSeries,
)

PHASES = ("prefill", "decode", "idle", "unattributed")

HOUR_SECONDS = 3600
KWH_JOULES = 3_600_000

WHOLE = 0.9995
"""A share from which on it is all, as far as its digits show."""

_LAGGING_SECONDS = 86_400


@dataclass(frozen=True, slots=True)
class GpuHourPrice:
    """Price of one GPU for an hour, given by the reader of the report."""

    per_gpu_hour: float
    currency: str


@dataclass(frozen=True, slots=True)
class Share:
    """A part of the GPU time; `cost` is None where no price is known."""

    name: str
    gpu_hours: float
    cost: float | None


@dataclass(frozen=True, slots=True)
class Account:
    """What one model of one namespace used; what is not known is None."""

    model_name: str
    namespace: str
    gpu_hours: Mapping[str, float]
    tokens: Mapping[str, float | None]
    kilowatt_hours: float | None
    cost: float | None

    @property
    def all_gpu_hours(self) -> float:
        """Its GPU-hours, idle ones included."""
        return sum(self.gpu_hours.values())


@dataclass(frozen=True, slots=True)
class Report:
    """All figures; hours are GPU-hours.

    `gpus` are mean GPUs by phase in each bucket, None in a bucket without any sample.
    `covered_ratio` is the share of the period for which there are any samples; the rest is not
    estimated. `coverage` is None where the number of GPUs is not recorded. `priced_ratio` is the
    share of GPU time that is in the cost, by the nodes that report a price; None if not known.
    """

    period: Period
    cluster: str | None
    covered_ratio: float
    coverage: Coverage | None
    gpu_hours: Mapping[str, float]
    gpus: Mapping[str, tuple[float | None, ...]]
    idle: tuple[Share, ...]
    energy_kilowatt_hours: Mapping[str, float]
    accounts: tuple[Account, ...]
    incidents: tuple[Incident, ...]
    currency: str | None
    cost: float | None
    notes: tuple[str, ...]
    priced_ratio: float | None = None

    @property
    def busy_gpu_hours(self) -> float:
        """Prefill and decode."""
        return self.gpu_hours["prefill"] + self.gpu_hours["decode"]

    @property
    def all_gpu_hours(self) -> float:
        """All observed GPU-hours."""
        return sum(self.gpu_hours.values())

    @property
    def prefill_share_ratio(self) -> float | None:
        """P / (P + D), of the sums; None below one busy GPU-second."""
        return _ratio_of(self.gpu_hours["prefill"], self.busy_gpu_hours)

    @property
    def prefill_decode_ratio(self) -> float | None:
        """P / D, of the sums; None below one GPU-second of decode."""
        return _ratio_of(self.gpu_hours["prefill"], self.gpu_hours["decode"])

    @property
    def occupancy_ratio(self) -> float | None:
        """Busy share of the observed time; busy is not full."""
        return _ratio_of(self.busy_gpu_hours, self.all_gpu_hours)

    @property
    def shares(self) -> tuple[float | None, ...]:
        """The prefill share in each bucket; None if less than a hundredth of a GPU is at work."""
        pairs = zip(self.gpus["prefill"], self.gpus["decode"], strict=True)
        return tuple(
            None if p is None or d is None or p + d < 0.01 else p / (p + d) for p, d in pairs
        )


def report_of(history: History, cluster: str | None, price: GpuHourPrice | None) -> Report:
    """Sum up a history."""
    period, split = history.period, history.curve(SPLIT)
    hours = dict.fromkeys(PHASES, 0.0)
    for (phase,), seconds in split.totals(1).items():
        hours[phase] = seconds / HOUR_SECONDS
    currencies = sorted({key[3] for key in history.curve(COST).buckets})
    notes = _notes(history, currencies, price)
    if period.length_seconds < _LAGGING_SECONDS:
        more = "Energy, who used what and " if history.hourly else ""
        notes.append(
            f"Recorded as hourly means: {more}how much is accounted for. In a period this short "
            "they lag behind, and their sums differ from those by phase."
        )
    if price is None and len(currencies) != 1:
        cost_of_idle, cost, currency = None, None, None
    elif price is None:
        costs = {
            key[0]: value / HOUR_SECONDS for key, value in history.curve(COST).totals(2).items()
        }
        cost_of_idle, cost, currency = costs.get("idle", 0.0), sum(costs.values()), currencies[0]
    else:
        cost_of_idle = hours["idle"] * price.per_gpu_hour
        cost, currency = sum(hours.values()) * price.per_gpu_hour, price.currency
    return Report(
        period=period,
        cluster=cluster,
        covered_ratio=sum(split.covered) / len(split.covered),
        coverage=coverage_of(history),
        gpu_hours=hours,
        gpus={phase: _gpus(split, phase, period.bucket_seconds) for phase in PHASES},
        idle=_idle(history.curve(IDLE), cost_of_idle),
        energy_kilowatt_hours={
            key[0]: joules / KWH_JOULES for key, joules in history.curve(ENERGY).totals(2).items()
        },
        accounts=_accounts(history, price, currency),
        incidents=incidents(
            history.firing, history.firing_step_seconds, period.start_seconds, period.end_seconds
        ),
        currency=currency,
        cost=cost,
        notes=tuple(notes),
        priced_ratio=_priced_ratio(history) if price is None else 1.0,
    )


def _priced_ratio(history: History) -> float | None:
    """Return the share of GPUs × buckets whose node reported a price; None if none did."""
    priced = whole = 0.0
    for node, gpus in history.gpus.items():
        prices = history.prices.get(node, (None,) * len(gpus))
        for count, each in zip(gpus, prices, strict=True):
            whole += count or 0.0
            priced += (count or 0.0) * (each is not None)
    return priced / whole if priced else None


def _gpus(split: RuleSeries, phase: str, bucket_seconds: int) -> tuple[float | None, ...]:
    """Return mean GPUs while there were samples; a phase absent from a covered bucket was 0."""
    found = []
    for place, covered in enumerate(split.covered):
        values = [row[place] for key, row in split.buckets.items() if key[1] == phase]
        seconds = sum(value for value in values if value is not None)
        found.append(seconds / (bucket_seconds * covered) if covered > 0 else None)
    return tuple(found)


def _idle(curve: RuleSeries, cost: float | None) -> tuple[Share, ...]:
    totals = {key[0]: seconds / HOUR_SECONDS for key, seconds in curve.totals(0).items()}
    whole = sum(totals.values())
    # Nodes may have different prices, but reasons are not recorded per node, so hours divide the
    # cost.
    return tuple(
        Share(reason, hours, None if cost is None or not whole else cost * hours / whole)
        for reason, hours in sorted(totals.items(), key=lambda item: -item[1])
        if hours > 0
    )


def _accounts(
    history: History, price: GpuHourPrice | None, currency: str | None
) -> tuple[Account, ...]:
    seconds = history.curve(SHOWBACK).totals(0, 1, 2)
    tokens = history.curve(TOKENS).totals(0, 1, 2)
    energy = history.curve(ENERGY).totals(0, 1)
    costs = history.curve(COST).totals(0, 1)
    found = []
    for model, namespace in sorted({(key[0], key[1]) for key in seconds}):
        hours = {p: seconds.get((model, namespace, p), 0.0) / HOUR_SECONDS for p in PHASES}
        joules = energy.get((model, namespace))
        if price is not None:
            cost: float | None = sum(hours.values()) * price.per_gpu_hour
        else:
            total = None if currency is None else costs.get((model, namespace))
            cost = None if total is None else total / HOUR_SECONDS
        found.append(
            Account(
                model,
                namespace,
                hours,
                {p: tokens.get((model, namespace, p)) for p in ("prefill", "decode")},
                None if joules is None else joules / KWH_JOULES,
                cost,
            )
        )
    return tuple(sorted(found, key=lambda account: -account.all_gpu_hours))


def _notes(history: History, currencies: Sequence[str], price: GpuHourPrice | None) -> list[str]:
    notes = []
    if price is None and not currencies:
        notes.append("No price is known: give --gpu-hour-price, or gpu_price in the node files.")
    elif price is None and len(currencies) > 1:
        together = ", ".join(currencies)
        notes.append(f"Nodes report prices in several currencies ({together}): none are added up.")
    elif price is None and (priced := _priced_ratio(history)) is not None and priced < WHOLE:
        notes.append(
            "Some nodes reported no price, all or part of the time: their GPU time is in no cost."
        )
    if ENERGY not in history.curves:
        notes.append("No GPU reported its energy.")
    if not any(key[0] for key in history.curve(SHOWBACK).buckets):
        notes.append("No model was served.")
    return notes


def _ratio_of(part_hours: float, whole_hours: float) -> float | None:
    return part_hours / whole_hours if whole_hours * HOUR_SECONDS >= 1 else None
