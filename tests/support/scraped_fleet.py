"""A small scraped fleet with known truth: kinds of GPUs, slices, incomplete metrics."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from bench.alerts.series import Span, Target

SECONDS = 80 * 60


@dataclass(frozen=True, slots=True)
class Node:
    """GPUs of one kind in one role, busy for a share of their time, and what their node exports."""

    name: str
    role: str
    gpus: int
    prefill: float = 0.0
    decode: float = 0.0
    gpu_name: str = "H100"
    model: str = "m"
    tokens: float | None = None
    """Tokens of its phase per second. None: its engines report none."""
    watts: float | None = None
    """Power of a busy GPU. None, as for slices: not reported."""
    activity: float | None = None
    price: float | None = None

    def busy(self, phase: str) -> float:
        """Return the busy GPUs of a phase."""
        return self.gpus * (self.prefill if phase == "prefill" else self.decode)


NODES = (
    Node("h0", "prefill", 8, prefill=0.6, tokens=48_000, watts=600, activity=0.8, price=2.0),
    Node("h1", "decode", 8, decode=0.5, tokens=4_000, watts=300, activity=0.3),
    Node("a0", "decode", 4, decode=0.9, gpu_name="A100", tokens=2_000, price=1.0),
    Node("t0", "decode", 2, decode=0.5, price=3.0),
    Node("g0", "mixed", 3, 0.1, 0.4, gpu_name="H100 MIG 2g.20gb", model="s", tokens=300),
    Node("g1", "mixed", 1, 0.2, 0.5, model="s", tokens=125, watts=400),
)
"""a0 reports no activity, t0 no tokens, g0 (slices) no energy; h1, g0 and g1 have no price."""


def scraped(scrape_seconds: int, seed: int, missed: range = range(0)) -> list[dict[str, str]]:
    """Return the fleet's series, each scraped while seconds are being committed, or before.

    `missed` are the seconds in which Prometheus does not run.
    """
    span = Span(1, SECONDS, scrape_seconds)
    chance = np.random.default_rng(seed)
    rows: list[dict[str, str]] = []
    for node in NODES:
        late = 4.5 + chance.random(len(span.times))
        target = Target(span, {"cluster": "c", "node": node.name}, late)
        target.missed = (span.times >= missed.start) & (span.times < missed.stop)
        _put(target, node)
        rows += target.rows
    return rows


def _put(target: Target, node: Node) -> None:
    model = f'role="{node.role}",model_name="{node.model}"'
    pool = f'{model},gpu_name="{node.gpu_name}"'
    target.gauge(
        "disagg_node_role_gpus", f'role="{node.role}",gpu_name="{node.gpu_name}"', node.gpus
    )
    # A tenth of the rest is unobserved.
    rest = node.gpus - node.busy("prefill") - node.busy("decode")
    target.counter("disagg_node_phase_seconds_total", f'{pool},phase="idle"', 0.9 * rest)
    unobserved = f'reason="no_reading",gpu_name="{node.gpu_name}"'
    target.counter("disagg_node_unobserved_seconds_total", unobserved, 0.1 * rest)
    if node.price is not None:
        target.gauge("disagg_node_gpu_hour_price", 'currency="EUR"', node.price)
    if node.activity is not None:
        unit = f'{pool},unit="sm"'
        target.counter("disagg_node_activity_seconds_total", unit, node.gpus * node.activity)
        target.counter("disagg_node_activity_gpu_seconds_total", unit, node.gpus)
    for phase in ("prefill", "decode"):
        busy, named = node.busy(phase), f'{pool},phase="{phase}"'
        target.counter("disagg_node_phase_seconds_total", named, busy)
        if busy and node.tokens is not None:
            labels = f'{model},phase="{phase}"'
            target.counter("disagg_node_phase_tokens_total", labels, node.tokens)
            target.counter("disagg_node_token_gpu_seconds_total", labels, busy)
        if node.watts is not None:
            target.counter("disagg_node_energy_joules_total", named, node.watts * busy)
            target.counter("disagg_node_energy_gpu_seconds_total", named, busy)


def busy(phase: str) -> float:
    """Return the true busy GPUs of a phase."""
    return sum(node.busy(phase) for node in NODES)


def seconds_per_million_tokens(model: str, phase: str) -> float:
    """Return the true GPU-seconds of a million tokens, over nodes that report tokens."""
    known = [node for node in NODES if node.model == model and node.tokens and node.busy(phase)]
    return 1e6 * sum(n.busy(phase) for n in known) / sum(n.tokens or 0.0 for n in known)


def price(model: str, phase: str) -> float:
    """Return the true price of a busy GPU-hour, over nodes that have one."""
    known = [node for node in NODES if node.model == model and node.price and node.busy(phase)]
    return sum(n.busy(phase) * (n.price or 0.0) for n in known) / sum(n.busy(phase) for n in known)
