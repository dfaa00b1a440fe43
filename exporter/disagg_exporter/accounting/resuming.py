"""The devices of a checkpoint, taken over by the daemon that reads it."""

from __future__ import annotations

from collections.abc import Iterable

from disagg_exporter.accounting.devices.device_account import DeviceLedger
from disagg_exporter.accounting.intervals.rules import Rules
from disagg_exporter.model import Device
from disagg_exporter.model.checkpoints import LedgerCheckpoint


def resumed_devices(
    before: LedgerCheckpoint, devices: Iterable[Device], now_ns: int, rules: Rules
) -> tuple[dict[str, DeviceLedger], list[DeviceLedger]]:
    """Return the accounting of the devices that go on, and that of those that are no more.

    Args:
        before: What the daemon before left.
        devices: The node's devices now. A pseudo-device goes on without being among them: it is its
            engine's.
        now_ns: Until when there was no daemon.
        rules: The rules.
    """
    here = {device.gpu: device for device in devices}
    going_on: dict[str, DeviceLedger] = {}
    removed: list[DeviceLedger] = []
    for saved in before.devices:
        ledger = DeviceLedger.resumed(saved, (before.taken_ns, now_ns), rules)
        known = saved.device
        present = here.get(known.gpu, known if known.is_pseudo else None)
        if present is None or not known.counts_as(present):
            removed.append(ledger)
        else:
            ledger.device = present
            going_on[known.gpu] = ledger
    return going_on, removed
