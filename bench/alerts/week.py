"""A week of a healthy fleet: routine events that must not alert anybody.

Nodes with a prefill and a decode engine share a model's load; a router fills four others one after
the other; a model is scaled to zero at night, its pools minutes apart, and its nodes are removed
with it; another gets one request an hour, some of them slow; a batch job fills a pool at night; one
node trains, one has its MIG repartitioned. Mornings are steep, weekends carry half the load.
Daemons are updated, nodes rebooted two at a time, engines replaced, and Prometheus misses minutes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from bench.alerts.engines import Engine, put_engine
from bench.alerts.series import Span, Target, Values

REBOOT_SECONDS, LOADING_SECONDS = 8 * 60, 14 * 60
UPDATE_SECONDS = 40
PACKED = 4
PAIRS = (("a", "b"), ("c", "d"), ("p0", "p1"), ("p2", "p3"))

# Series that must exist for an empty result to mean anything, and how many of each.
JUDGED = {
    "cluster_model_namespace:disagg_ttft_slow:ratio_rate5m": 6,
    "cluster_role:disagg_occupancy:ratio_rate5m": 4,
    "cluster_model_namespace_gpu:disagg_imbalance:log2": 2,
}


def quiet_week(rule_files: list[Path], span: Span, seed: int, evaluation: str) -> dict[str, Any]:
    """Return the promtool test of the week; it fails if an alert was firing at any time."""
    groups = [
        g["name"] for p in rule_files for g in yaml.load(p.read_text(), yaml.CSafeLoader)["groups"]
    ]
    # A batch that fills its pool is a ticket; so is a first morning, with no day to compare with.
    usual = 'alertstate="firing",alertname!~"DisaggPool(AtCapacity|Filling)"'
    nothing = {
        "expr": f"count_over_time(ALERTS{{{usual}}}[{span.seconds}s])",
        "eval_time": f"{span.seconds}s",
        "exp_samples": [],
    }
    judged = {
        "expr": " + ".join(f"count(count_over_time({name}[{span.seconds}s]))" for name in JUDGED),
        "eval_time": f"{span.seconds}s",
        "exp_samples": [{"labels": "{}", "value": sum(JUDGED.values())}],
    }
    series = [row for target in Fleet(span, seed).targets() for row in target.rows]
    return {
        "rule_files": [str(path) for path in rule_files],
        "evaluation_interval": evaluation,
        "group_eval_order": groups,
        "tests": [
            {
                "interval": f"{span.scrape_seconds}s",
                "input_series": series,
                "promql_expr_test": [judged, nothing],
            }
        ],
    }


class Fleet:
    """The nodes of one cluster over a span of days."""

    def __init__(self, span: Span, seed: int) -> None:
        self._span = span
        self._chance = np.random.default_rng(seed)
        self._day = span.minutes / span.day_seconds

    def load(self, part_of_day: Values, day: Values) -> Values:
        """Return the usual share of a model's GPUs that is busy: less at weekends."""
        hours = [0.0, 0.28, 0.38, 0.5, 0.55, 0.8, 0.95, 1.0]
        usual = np.interp(part_of_day, hours, [0.1, 0.1, 0.62, 0.62, 0.55, 0.68, 0.12, 0.1])
        return np.where(day % 7 >= 5, usual / 2, usual)

    def targets(self) -> list[Target]:
        """Return every node's series, and those of Kubernetes about each."""
        load = self.load(self._day % 1, self._day // 1)
        shared = [self._shared(node, load) for node in "abcd"]
        packed = [self._packed(place, load) for place in range(PACKED)]
        slept = self._scaled_to_zero(load)
        others = [self._rare(), self._batch(), self._trains(), self._cut_anew()]
        return [*shared, *packed, *slept, *others]

    def _target(self, node: str, away: Sequence[tuple[float, float]] = ()) -> Target:
        """Return a new node: updated, rebooted and scraped like the others; absent while `away`."""
        labels = {"cluster": "east", "node": node, "job": "disagg-node"}
        target = Target(self._span, labels, float(self._chance.uniform(0, 0.9)))
        always = np.ones(len(target.times), bool)
        update = self._span.at(0, 0.45) + 60 * (sum(map(ord, node)) % 13)
        down = target.between(update, update + UPDATE_SECONDS)
        for turn, pair in enumerate(PAIRS):
            start = self.rebooted_at(turn)
            if node in pair:
                down |= target.between(start, start + REBOOT_SECONDS)
                target.begins_anew.append(start)
        # Prometheus is restarted on the last day and scrapes nothing for three minutes.
        noon = self._span.at(self._span.days - 1, 0.5)
        target.missed |= target.between(noon, noon + 180)
        gone = ~always
        for start, end in away:
            gone |= target.between(start, end)
        target.there &= ~down & ~gone
        target.from_others("up", "", np.where(down, 0.0, 1.0), ~gone)
        allocatable = 'resource="nvidia_com_gpu"'
        target.from_others("kube_node_status_allocatable", allocatable, 2.0, ~gone)
        target.gauge("disagg_build_info", 'version="0.1.0"', 1)
        target.gauge("disagg_node_busy_window_seconds", "", 1)
        started = np.where(target.times < update, 0.0, update)
        target.gauge("process_start_time_seconds", "", started)
        for collector in ("nvml", "journal", "supervisor"):
            late = self._chance.random(len(target.times)) < 0.0005
            target.gauge("disagg_collector_success", f'collector="{collector}"', 1.0 - late)
        return target

    def rebooted_at(self, turn: int) -> float:
        """Return when a pair of nodes is rebooted: each starts when the previous one is done."""
        return self._span.at(min(1, self._span.days - 1), 0.6) + turn * (REBOOT_SECONDS + 30)

    def _noise(self, share: Values, size: float) -> Values:
        return np.clip(share + self._chance.normal(0, size, len(share)), 0.0, 1.0)

    def _shared(self, node: str, load: Values) -> Target:
        """A node of the pools that a fair router loads evenly; the daemon launches its workers."""
        target = self._target(node)
        turn = next(number for number, pair in enumerate(PAIRS) if node in pair)
        back = self.rebooted_at(turn) + REBOOT_SECONDS
        loading = target.between(back, back + LOADING_SECONDS)
        for role in ("prefill", "decode"):
            replaced = loading
            if (node, role) == ("c", "decode"):
                start = self._span.at(0, 0.7)
                replaced = loading | target.between(start, start + LOADING_SECONDS)
            engine = Engine(f"{role}-0", role, "m", launched=True)
            put_engine(target, engine, self._noise(load, 0.08), self._chance, up=~replaced)
        return target

    def _packed(self, place: int, load: Values) -> Target:
        """A node of a pool whose router fills one engine before it uses the next."""
        target = self._target(f"p{place}")
        turn = 2 + place // 2
        back = self.rebooted_at(turn) + REBOOT_SECONDS
        loading = target.between(back, back + LOADING_SECONDS)
        busy = np.clip(load * PACKED * 1.2 - place, 0.0, 0.98)
        engine = Engine("packed", "mixed", "pack", namespace="serving")
        put_engine(target, engine, self._noise(busy, 0.01), self._chance, up=~loading, full=1.0)
        return target

    def _scaled_to_zero(self, load: Values) -> list[Target]:
        """Two nodes of a model scaled to zero: prefill and its node leave first, return last."""
        span, minutes = self._span, self._span.minutes
        nights = [(span.at(day, 0.08), span.at(day, 0.29)) for day in range(span.days)]
        asks = np.ones(len(minutes), bool)
        for off, on in nights:
            # No requests from a quarter of an hour before until both are back.
            asks &= (minutes < off - 900) | (minutes >= on + 900)
        prefill = [(off, on + 720) for off, on in nights]
        decode = [(off + 660, on) for off, on in nights]
        away = [(start + 720, end - 300) for start, end in prefill]
        targets = [self._target("z1", away), self._target("z2")]
        for target, role, naps in zip(
            targets, ("prefill", "decode"), (prefill, decode), strict=True
        ):
            awake = np.ones(len(target.times), bool)
            for start, end in naps:
                awake &= ~target.between(start, end)
            asked = np.where(asks, self._noise(load, 0.05), 0.0)
            put_engine(target, Engine(f"{role}-z", role, "night"), asked, self._chance, there=awake)
            target.gauge("disagg_node_role_gpus", 'role="none",gpu_name="H"', 1, ~awake)
        return targets

    def _rare(self) -> Target:
        """A node whose model gets one request an hour, every second one slow."""
        target = self._target("r")
        asked = (self._chance.random(len(self._day)) < 1 / 60).astype(float)
        for role in ("prefill", "decode"):
            engine = Engine(f"{role}-r", role, "rare", source="engine", slow=0.5)
            put_engine(target, engine, 0.02 * asked, self._chance, requests=asked / 60)
        return target

    def _batch(self) -> Target:
        """A node that is filled on purpose at night, with no users waiting."""
        target = self._target("x")
        busy = np.where(self._day % 1 < 0.25, 0.99, 0.02)
        put_engine(target, Engine("batch-x", "mixed", "batch"), busy, self._chance, full=1.12)
        return target

    def _trains(self) -> Target:
        """A node whose GPUs belong to no engine: they are used for training."""
        target = self._target("t")
        target.gauge("disagg_node_role_gpus", 'role="none",gpu_name="H"', 2)
        for index in range(2):
            gpu = f'gpu="t{index}"'
            info = f'{gpu},index="{index}",gpu_name="H",device="nvidia{index}"'
            target.gauge("disagg_gpu_info", info, 1)
            target.counter(
                "disagg_gpu_unattributed_seconds_total", f'{gpu},reason="stranger"', 0.97
            )
            lag = target.times - 900
            target.gauge("disagg_gpu_watermark_timestamp_seconds", gpu, np.clip(lag, 0, None))
        return target

    def _cut_anew(self) -> Target:
        """A node whose one GPU is repartitioned from three MIG slices to one; its pod returns."""
        target = self._target("g")
        cut = self._span.at(0, 0.4)
        before, after = target.between(0, cut), target.between(cut + 120, np.inf)
        for number in range(3):
            info = f'gpu="MIG-{number}",index="0",gpu_name="G",device="nvidia0/gi{number}"'
            target.gauge("disagg_gpu_info", info, 1, before)
        info = 'gpu="MIG-9",index="0",gpu_name="G",device="nvidia0/gi9"'
        target.gauge("disagg_gpu_info", info, 1, after)
        put_engine(
            target,
            Engine("small-g", "mixed", "small", gpu_name="G"),
            np.where(self._day % 1 < 0.3, 0.1, 0.4),
            self._chance,
            there=before | after,
        )
        return target
