"""The state of launched workers, and what is to be done about it; pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from disagg_cluster.host.foreign_json import parse_foreign
from disagg_cluster.host.spans import duration_text
from disagg_cluster.inspect.doctor.facts import Diagnosis, Level, WorkerFacts
from disagg_exporter.model.counted import counted

_LINE_CHARACTERS = 160


def read_workers(text: bytes) -> tuple[WorkerFacts, ...]:
    """Return the workers in a daemon's `/view.json`; none if it cannot be parsed."""
    try:
        view = parse_foreign(text)
        made = _seconds(view["made_at"])
        engines = [(each["engine"], each["worker"]) for each in view["engines"]]
        return tuple(_worker(name, worker, made) for name, worker in engines if worker is not None)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return ()


def _worker(name: str, worker: dict[str, object], made: float | None) -> WorkerFacts:
    since, until = _seconds(worker["since"]), _seconds(worker["deadline"] or worker["next_start"])
    lines = worker["last_lines"]
    return WorkerFacts(
        name,
        str(worker["state"]),
        int(str(worker["restarts"])),
        bool(worker["paused"]),
        None if since is None or made is None else made - since,
        None if until is None or made is None else max(0.0, until - made),
        str(worker["cause"]),
        tuple(map(str, lines)) if isinstance(lines, list) else (),
        # An older daemon does not say it.
        bool(worker.get("drained", False)),
    )


def _seconds(instant: object) -> float | None:
    return datetime.fromisoformat(instant).timestamp() if isinstance(instant, str) else None


def examine_worker(worker: WorkerFacts) -> Iterator[Diagnosis]:
    """Yield findings about a worker that is not simply at work."""
    name = worker.worker
    since = "" if worker.state_seconds is None else f" for {duration_text(worker.state_seconds)}"
    left = None if worker.left_seconds is None else duration_text(worker.left_seconds)
    printed = _printed(worker.last_lines)
    if worker.paused:
        what = f"{name} is paused: it is neither killed nor started"
        yield Diagnosis(Level.WARN, what, f"disagg-node resume {name}", gain=3)
    if worker.drained:
        what = f"{name} is drained by hand: it gets no requests, and its pool is one engine smaller"
        yield Diagnosis(Level.WARN, what, f"disagg-node resume {name}", gain=3)
    match worker.state:
        case "starting":
            until = f", given up in {left}" if left else ""
            yield Diagnosis(Level.FINE, f"{name} is starting{since}{until}{printed}")
        case "draining":
            yield Diagnosis(Level.FINE, f"{name} is draining{since}")
        case "backoff":
            until = f", next start in {left}" if left else ""
            what = f"{name} has crashed: {worker.cause or 'the cause is not known'}{until}{printed}"
            yield Diagnosis(Level.WRONG, what, f"disagg-node logs {name}", gain=8)
        case "failed":
            cause = worker.cause or "the cause is not known"
            given_up = f"was given up after {counted(worker.restarts, 'restart')}"
            until = f", next start in {left}" if left else ""
            what = f"{name} {given_up}: {cause}{until}{printed}"
            step = f"disagg-node logs {name}; what it says mended, disagg-node restart {name}"
            yield Diagnosis(Level.WRONG, what, step, gain=9)


def _printed(lines: tuple[str, ...]) -> str:
    return f"; it printed last: {lines[-1].strip()[:_LINE_CHARACTERS]}" if lines else ""
