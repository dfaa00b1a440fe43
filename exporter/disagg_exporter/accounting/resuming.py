"""Resuming after an earlier daemon: its devices, and its engines until they are back."""

from __future__ import annotations

from collections.abc import Iterable

from disagg_exporter.accounting.devices.device_account import DeviceLedger
from disagg_exporter.accounting.intervals.rules import Rules
from disagg_exporter.model import Assignment, Device, EngineState
from disagg_exporter.model.checkpoints import LedgerCheckpoint


def resumed_devices(
    before: LedgerCheckpoint, devices: Iterable[Device], now_ns: int, rules: Rules
) -> tuple[dict[str, DeviceLedger], list[DeviceLedger]]:
    """Return the accounting of devices that continue, and of those that are no more.

    Args:
        before: The checkpoint of the daemon before.
        devices: The node's devices now. A pseudo-device continues without being among them: it is
            its engine's.
        now_ns: Until when there was no daemon.
        rules: The rules.
    """
    here = {device.gpu: device for device in devices}
    present: dict[str, DeviceLedger] = {}
    removed: list[DeviceLedger] = []
    for saved in before.devices:
        ledger = DeviceLedger.resumed(saved, (before.taken_ns, now_ns), rules)
        known = saved.device
        current = here.get(known.gpu, known if known.is_pseudo else None)
        if current is None or not known.counts_as(current):
            removed.append(ledger)
        else:
            ledger.device = current
            present[known.gpu] = ledger
    return present, removed


class AwaitedEngines:
    """Engines of the daemon before that are awaited, and since when."""

    def __init__(self) -> None:
        self._since_ns: dict[str, int] = {}
        self._found: set[str] = set()

    @property
    def missing(self) -> frozenset[str]:
        """Those that have not been found again."""
        return frozenset(self._since_ns.keys() - self._found)

    def expect(self, engine: str, since_ns: int) -> None:
        """Await an engine."""
        self._since_ns[engine] = since_ns

    def is_adopted(self, known: Assignment, now: Assignment) -> bool:
        """Say whether an assignment is of an awaited process that has not answered yet.

        Until it does, nothing is known of it that was not known before.
        """
        engine = now.engine
        if engine not in self._since_ns or now.state is not EngineState.STARTING:
            return False
        if now.pids != known.pids or known.state is EngineState.GONE:
            return False
        self._found.add(engine)
        return True

    def arrive(self, known: Assignment, now: Assignment) -> int | None:
        """End the wait for an engine; return since when its earlier process has been gone.

        None if that is still there, or was gone already.
        """
        since_ns = self.drop(now.engine)
        stays = now.pids == known.pids or known.state is EngineState.GONE
        return None if stays else since_ns

    def drop(self, engine: str) -> int | None:
        """End the wait for an engine; return since when it was awaited."""
        self._found.discard(engine)
        return self._since_ns.pop(engine, None)
