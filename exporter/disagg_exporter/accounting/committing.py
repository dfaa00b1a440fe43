"""What can no longer change goes from the engines' timelines into the devices' books."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from disagg_exporter.accounting.device import DeviceLedger
from disagg_exporter.accounting.engine_books import EngineBooks
from disagg_exporter.accounting.rules import Rules


def commit(
    ledger: DeviceLedger, engines: Mapping[str, EngineBooks], now_ns: int, rules: Rules
) -> None:
    """Move one device's watermark as far as its engines let it, and credit them (A6)."""
    readers = ledger.awaited()
    awaited = {name: engines[name] for name in readers if name in engines}
    marks = [
        lane.mark_ns
        for name, books in awaited.items()
        for lane in books.lanes.values()
        if lane.mark_ns < readers[name]
    ]
    free_ns = max(now_ns - rules.packing_delay_ns, ledger.last_death_ns)
    target_ns = ledger.target(min(marks, default=free_ns))
    if target_ns <= ledger.watermark_ns:
        return
    pieces = {
        name: books.between(ledger.watermark_ns, target_ns) for name, books in awaited.items()
    }
    for used in ledger.commit(target_ns, pieces):
        # What was owed to an engine that is forgotten is the device's alone.
        if used.engine in engines:
            weighted_ns = used.length_ns * ledger.device.weight
            engines[used.engine].gpu_ns[used.role, used.phase] += weighted_ns


def drop_read(devices: Iterable[DeviceLedger], engines: Mapping[str, EngineBooks]) -> None:
    """Let every engine forget the timeline that all devices which await it have read."""
    read_ns: dict[str, int] = {}
    for ledger in devices:
        for name in ledger.awaited():
            read_ns[name] = min(read_ns.get(name, ledger.watermark_ns), ledger.watermark_ns)
    for name, books in engines.items():
        books.drop_read(read_ns.get(name))
