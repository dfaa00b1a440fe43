"""A cluster's history as Prometheus would have scraped it: our own page, once for every node."""

from __future__ import annotations

from typing import TextIO

from disagg_exporter.accounting import Ledger
from disagg_exporter.metrics.render import rows_of
from disagg_exporter.metrics.table import FAMILIES
from disagg_exporter.model import (
    SECOND_NS,
    Assignment,
    Device,
    EngineState,
    EngineStatus,
    Role,
    Snapshot,
    Step,
    StepTotals,
    StreamKey,
)

GPUS_PER_NODE = 8
SCRAPE_SECONDS = 30
# A rate over five minutes, and as much again as a history for rules.
SCRAPES = 21
_WANTED = (
    "disagg_gpu_phase_seconds_total",
    "disagg_node_phase_seconds_total",
    "disagg_node_busy_gpus",
    "disagg_node_busy_window_seconds",
    "disagg_node_role_gpus",
)


Page = dict[tuple[str, tuple[tuple[str, str], ...]], float]
"""The samples of a page by name and labels."""


class Node:
    """One node of eight GPUs, four in each pool, whose engines work half of the time."""

    def __init__(self) -> None:
        self._ledger = Ledger()
        self._devices = tuple(
            Device(f"GPU-{i}", i, "H100", f"nvidia{i}") for i in range(GPUS_PER_NODE)
        )
        self._engines = tuple(
            (f"{'prefill' if i < GPUS_PER_NODE // 2 else 'decode'}-{i}", device)
            for i, device in enumerate(self._devices)
        )
        for device in self._devices:
            self._ledger.add_device(device, 0)
        for name, device in self._engines:
            ready = EngineState.READY
            role = _role(name)
            self._ledger.assign(Assignment(name, role, (device.gpu,), ready, 0, (1,), "m"))
        self._now_ns = self._steps = 0

    def page(self, until_seconds: int) -> Page:
        """Run the node until then, busy half of every second; return its page."""
        while self._now_ns < until_seconds * SECOND_NS:
            self._now_ns += SECOND_NS
            self._steps += 1
            for name, _device in self._engines:
                self._ledger.step(StreamKey(name, 1, 1, 0), self._step(name), now_ns=self._now_ns)
            self._ledger.advance(self._now_ns)
        samples = rows_of(self._snapshot(), self._now_ns).samples
        return {
            (family.name, tuple(zip(family.labels, labels, strict=True))): value
            for family in FAMILIES
            if family.name in _WANTED
            for labels, value in samples.get(family.name, {}).items()
        }

    def _step(self, engine: str) -> Step:
        prefill = _role(engine) is Role.PREFILL
        lengths = [self._steps * SECOND_NS // 2 * (kind != prefill) for kind in range(2)]
        counts = [self._steps * (kind != prefill) for kind in range(2)]
        totals = StepTotals((counts[0], counts[1], 0, 0), (lengths[0], lengths[1], 0, 0))
        return Step(
            self._now_ns,
            SECOND_NS // 2,
            self._steps,
            context_requests=int(prefill),
            context_tokens=500 * prefill,
            computed_tokens=500 * prefill,
            generation_requests=int(not prefill),
            generation_tokens=int(not prefill),
            running=1,
            totals=totals,
        )

    def _snapshot(self) -> Snapshot:
        now_ns = self._now_ns
        busy, window_seconds = self._ledger.fast_gauges(now_ns)
        ready = EngineState.READY
        return Snapshot(
            now_ns,
            0.0,
            now_ns + SECOND_NS,
            devices=self._devices,
            accounts=self._ledger.device_accounts(),
            engine_accounts=self._ledger.engine_accounts(now_ns),
            tokens=self._ledger.token_accounts(),
            busy=busy,
            busy_window_seconds=window_seconds,
            engines=tuple(
                EngineStatus(name, _role(name), "vllm", "", "m", (device.gpu,), ready, True, "", "")
                for name, device in self._engines
            ),
        )


def write_history(out: TextIO, nodes: int, start_seconds: int) -> int:
    """Write the scrapes of that many nodes as OpenMetrics; return the number of series."""
    node = Node()
    pages = [node.page((scrape + 1) * SCRAPE_SECONDS) for scrape in range(SCRAPES)]
    for name, labels in pages[-1]:
        values = [(page.get((name, labels)), page_number) for page_number, page in enumerate(pages)]
        rows = [
            f" {value} {start_seconds + number * SCRAPE_SECONDS}\n"
            for value, number in values
            if value is not None
        ]
        for number in range(nodes):
            where = {"cluster": "c", "node": f"n{number}", "instance": f"n{number}:9847"}
            own = {label: _own(value, number) for label, value in labels}
            text = ",".join(f'{label}="{value}"' for label, value in {**own, **where}.items())
            out.writelines(f"{name}{{{text}}}{row}" for row in rows)
    out.write("# EOF\n")
    return len(pages[-1]) * nodes


def _own(value: str, node: int) -> str:
    """Return a label value made unique to a node, as each node has other GPUs."""
    return value.replace("GPU-", f"GPU-{node}-") if value.startswith("GPU-") else value


def _role(engine: str) -> Role:
    return Role.PREFILL if engine.startswith("prefill") else Role.DECODE
