"""Faults at random moments of a move: injected one by one, reported, healed, and judged."""

from __future__ import annotations

import contextlib
import random
import shutil
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.faults.campaigns import needs_mounts
from bench.faults.coverage import grown, increase
from bench.faults.fault import Expected, Observed, judge
from bench.faults_control.kinds import HOST_KINDS, KINDS, Before, Kind
from bench.faults_control.moved_node import MovedNode
from bench.faults_control.scenes import moved_node

from disagg_cluster.control.messages import ReplyOutcome
from disagg_exporter.model import Role
from support.routed_node import Users

MOVE_SECONDS = 4.0
"""About how long a move takes here; faults are drawn from this whole time."""

REPORTED_SECONDS = 10.0
_PATIENCE_SECONDS = 60.0
_RECOVERED_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """One fault: what was observed, how the move ended, users' requests, and what is wrong.

    Until the state was reported, the daemon was ready to run for `waited_seconds` without a core.
    """

    kind: str
    observed: Observed
    ended: str = ""
    text: str = ""
    requests: int = 0
    requests_failed: int = 0
    waited_seconds: float = 0.0
    bad: tuple[str, ...] = ()


def killed(counts: Mapping[str, int], router_python: Path, seed: str) -> dict[str, Any]:
    """Inject `counts` faults of each kind in a random order, and those of the host after them."""
    found: dict[str, Any] = {"outcomes": [], "not_run": {}, "left_processes": 0}
    for kinds, host in ((KINDS, False), (HOST_KINDS, True)):
        drawn = [kind for kind in kinds for _ in range(counts.get(kind.name, 0))]
        random.Random(seed).shuffle(drawn)
        lacks = _lacks() if host else ""
        if lacks or not drawn:
            found["not_run"] |= {kind.name: f"no {lacks}" for kind in drawn}
            continue
        with moved_node(router_python, seed, host=host) as node:
            # Wait, as there is no page at first.
            node.watch.until(node.all_ready, _PATIENCE_SECONDS)
            begun = node.watch.page
            runnable = [kind for kind in drawn if node.beside or not kind.programs]
            found["not_run"] |= {k.name: "no prometheus" for k in drawn if k not in runnable}
            for number, kind in enumerate(runnable, start=1):
                outcome = play(node, kind, number)
                found["outcomes"].append(outcome)
                say(f"{number} of {len(runnable)}", outcome)
                if outcome.observed.recovered_seconds is None:
                    break
            if not host:
                found["accounting"] = accounting(begun, node)
            found["left_processes"] += node.left()
    return found


def play(
    node: MovedNode,
    kind: Kind,
    number: int,
    move_seconds: float = MOVE_SECONDS,
    recovered_seconds: float = _RECOVERED_SECONDS,
) -> Outcome:
    """Begin a move, inject the fault at a random moment of it, and observe the outcome of both.

    Everything must have recovered `recovered_seconds` after the cause is gone.
    """
    lost, answered = len(node.direct.failures), node.direct.completed
    back, doubled = set(node.watch.back), set(node.watch.doubled)
    pids = node.untouched_pids()
    users = node.users()
    try:
        outcome = _played(node, kind, number, move_seconds)
    except Exception:  # noqa: BLE001 - a fault that cannot be judged counts as bad
        why = traceback.format_exc(limit=-2).replace("\n", " ")
        outcome = Outcome(kind.name, Observed(error=why))
    finally:
        with contextlib.suppress(Exception):
            kind.heal(node)
        users.stop()
    now = node.untouched_pids()
    seen = replace(
        outcome.observed,
        lost=len(node.direct.failures) - lost,
        answered=node.direct.completed - answered,
        moved=tuple(name for name, before in pids.items() if now[name] != before),
        back=tuple(sorted(node.watch.back - back)),
        doubled=tuple(sorted(node.watch.doubled - doubled)),
    )
    return _judged(kind, replace(outcome, observed=seen), users, recovered_seconds)


def _played(node: MovedNode, kind: Kind, number: int, move_seconds: float) -> Outcome:
    role = Role.PREFILL if node.role_of(node.moved) is Role.DECODE else Role.DECODE
    request_id = f"fault-{number}"
    begun = node.move(role, request_id, wait=False)
    if begun.outcome is not ReplyOutcome.ACCEPTED:
        return Outcome(kind.name, Observed(error=f"not begun: {begun.text}"))
    node.rest(node.chance.uniform(0.0, move_seconds))
    if kind.victim:
        node.wait_process(kind.victim)
    views = node.views() or {}
    before = Before(node.page(), {name: view.pid for name, view in views.items()})
    daemon, waited_before_seconds = node.node, node.waited_seconds()
    kind.do(node)
    reported_seconds = _until_reported(node, kind, before)
    waited_seconds = node.waited_seconds()
    if node.node is daemon:
        waited_seconds -= waited_before_seconds
    node.rest(kind.lasts_seconds)
    kind.heal(node)
    healed = time.monotonic()
    ended = node.move(role, request_id, wait=True)
    # Wait until all are ready and routed again, so that the next fault is independent.
    recovered_seconds = None
    with contextlib.suppress(AssertionError):
        node.wait_routed()
        node.wait_programs()
        recovered_seconds = time.monotonic() - healed
    return Outcome(
        kind.name,
        Observed(reported_seconds=reported_seconds, recovered_seconds=recovered_seconds),
        ended.outcome.value,
        f"{ended.text} {ended.way_out}".strip(),
        waited_seconds=waited_seconds,
    )


def _until_reported(node: MovedNode, kind: Kind, before: Before) -> float | None:
    began = time.monotonic()
    while time.monotonic() - began < _PATIENCE_SECONDS:
        # A page from before the fault does not count.
        if node.watch.seen_at > began and kind.reported(node, before):
            return time.monotonic() - began
        node.rest(0.1)
    return None


def _judged(kind: Kind, outcome: Outcome, users: Users, recovered_seconds: float) -> Outcome:
    failed = len(users.failed)
    expected = Expected("the state", REPORTED_SECONDS, recovered_seconds=recovered_seconds)
    bad = list(judge(expected, outcome.observed))
    if not outcome.observed.error and outcome.ended not in kind.ends:
        bad.append(f"the move ended otherwise: {outcome.ended}, {outcome.text}")
    if failed and not kind.fails:
        bad.append(f"{failed} requests of users failed, such as {users.failed[0]}")
    return replace(outcome, requests=len(users.answered), requests_failed=failed, bad=tuple(bad))


def accounting(begun: Mapping[str, float], node: MovedNode) -> dict[str, float]:
    """Return the GPU-seconds since a page, and what is missing on the page and in Prometheus."""
    now = node.watch.page
    wall = grown(begun, now, "disagg_gpu_watermark_timestamp_seconds")
    reported = sum(
        grown(begun, now, name)
        for name in ("disagg_gpu_phase_seconds_total", "disagg_gpu_unobserved_seconds_total")
    )
    found = {"gpu_seconds": wall, "missing_percent": 100 * abs(1 - reported / wall)}
    if node.beside is not None:
        found["prometheus_missing_percent"] = 100 * abs(
            1 - increase(node.beside.prometheus_url, node.began_seconds)
        )
    return found


def _lacks() -> str:
    return needs_mounts() or ("" if shutil.which("gcc") else "gcc")


def say(place: str, outcome: Outcome) -> None:
    """Print a line of progress, and what is wrong."""
    seconds = outcome.observed.reported_seconds
    reported = "never reported" if seconds is None else f"reported after {seconds:.1f} s"
    reported += f" ({outcome.waited_seconds:.1f} s without a core)"
    users = f"{outcome.requests} requests, {outcome.requests_failed} failed"
    sys.stderr.write(f"{place}: {outcome.kind}: {outcome.ended}, {reported}, {users}\n")
    for why in outcome.bad:
        sys.stderr.write(f"    {why}\n")
