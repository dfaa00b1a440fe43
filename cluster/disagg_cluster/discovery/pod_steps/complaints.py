"""What keeps a pod that asked to be heard from being heard well; each said once; pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from disagg_exporter.inside_engine.disagg_steps import wire

# The plugin connects when the engine makes its first stat logger: after the model is loaded.
SILENT_SECONDS = 1800.0


@dataclass(frozen=True, slots=True)
class Hearing:
    """How one pod's socket fares: `flags` are those of its last message, 0 before one came."""

    uid: str
    name: str
    running: bool
    accepted: int
    refused: int
    flags: int


class Complaints:
    """Remembers since when pods run, and what was said of each."""

    def __init__(self) -> None:
        self._running_ns: dict[str, int] = {}
        self._said: set[tuple[str, str]] = set()

    def news(self, hearings: Iterable[Hearing], now_ns: int) -> Iterator[str]:
        """Yield what is to be said now; pods that are no longer among them are forgotten."""
        known = tuple(hearings)
        self._running_ns = {
            each.uid: self._running_ns.get(each.uid, now_ns) for each in known if each.running
        }
        found = {(each.uid, text) for each in known for text in self._complaints(each, now_ns)}
        yield from sorted(text for uid, text in found - self._said)
        uids = {each.uid for each in known}
        self._said = found | {(uid, text) for uid, text in self._said if uid in uids}

    def _complaints(self, hearing: Hearing, now_ns: int) -> Iterator[str]:
        silent_ns = now_ns - self._running_ns.get(hearing.uid, now_ns)
        if not hearing.accepted and silent_ns > SILENT_SECONDS * 1e9:
            yield (
                f"{hearing.name} asked to be heard and says nothing: does its engine have "
                f"PYTHONPATH and {wire.SOCKET_ENVIRONMENT}?"
            )
        if hearing.flags & wire.NO_DETAILS:
            yield (
                f"{hearing.name} does not say how long its steps take: its engine needs "
                "--enable-logging-iteration-details"
            )
        if hearing.refused:
            yield f"{hearing.name} told what no engine does, which was turned away"
