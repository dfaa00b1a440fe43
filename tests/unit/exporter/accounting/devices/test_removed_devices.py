"""A model's name may be forgotten; the time that was spent on it may not."""

from __future__ import annotations

from disagg_exporter.accounting import Ledger
from disagg_exporter.metrics.family import MetricRows
from disagg_exporter.metrics.node_rows import write_node
from disagg_exporter.model import (
    FORGOTTEN_MODEL,
    SECOND_NS,
    Assignment,
    Device,
    DeviceReading,
    DeviceSweep,
    EngineState,
    Role,
    Snapshot,
)

GPU = Device("GPU-a", 0, "H100", "nvidia0")


class IdleDevice:
    """A device that idles under engines of one name after the other, a second at a time."""

    def __init__(self) -> None:
        self.ledger, self.second = Ledger(), 100
        self.ledger.add_device(GPU, self.second * SECOND_NS)

    def serve(self, model_name: str, seconds: int, state: EngineState = EngineState.READY) -> None:
        since_ns = self.second * SECOND_NS
        self.ledger.assign(
            Assignment("e", Role.DECODE, (GPU.gpu,), state, since_ns, model_name=model_name)
        )
        for _ in range(seconds):
            self.second += 1
            now_ns = self.second * SECOND_NS
            reading = DeviceReading(
                GPU.gpu,
                now_ns,
                busy_ratio=0.5,
                energy_joules=100.0 * self.second,
                graphics_ratio=0.5,
            )
            self.ledger.read(DeviceSweep(now_ns, (reading,)))
            self.ledger.advance(now_ns)

    @property
    def models(self) -> set[str]:
        account = self.ledger.device_accounts()[0]
        sums = (
            account.slice_ns,
            account.active_slice_ns,
            account.read_slice_ns,
            account.microjoules or {},
        )
        return {key.model_name for cells in sums for key in cells} - {"", FORGOTTEN_MODEL}

    def shown(self) -> str:
        rows = MetricRows()
        now_ns = self.second * SECOND_NS
        accounts = self.ledger.device_accounts()
        write_node(rows, Snapshot(now_ns, 0.0, now_ns, accounts=accounts))
        return str(dict(rows.samples))


def test_a_forgotten_models_series_end_and_its_devices_sums_do_not_change() -> None:
    accounting = IdleDevice()
    accounting.serve("old", 20)
    accounting.serve("new", 20)
    before = accounting.ledger.device_accounts()[0]
    assert accounting.models == {"old", "new"}

    accounting.ledger.forget_model("old")
    after = accounting.ledger.device_accounts()[0]

    assert accounting.models == {"new"}
    assert sum(after.slice_ns.values()) == sum(before.slice_ns.values())
    energies = [sum((account.microjoules or {}).values()) for account in (before, after)]
    assert energies[0] == energies[1] > 0
    assert "old" not in accounting.shown()
    assert FORGOTTEN_MODEL not in accounting.shown()
    assert "new" in accounting.shown()


def test_a_model_that_is_served_is_not_forgotten() -> None:
    accounting = IdleDevice()
    accounting.serve("m", 20)

    accounting.ledger.forget_model("m")

    assert accounting.models == {"m"}


def test_a_forgotten_model_that_is_served_again_is_counted_from_zero() -> None:
    """Like a new process; Prometheus treats the smaller value as a reset."""
    accounting = IdleDevice()
    accounting.serve("m", 50)
    accounting.serve("other", 20)
    accounting.ledger.forget_model("m")
    accounting.serve("m", 20)

    seconds = [
        value
        for cell, value in accounting.ledger.device_accounts()[0].cells.items()
        if cell.model_name == "m"
    ]
    assert 0 < sum(seconds) <= 20


def test_removed_devices_keep_their_seconds_without_the_forgotten_name() -> None:
    accounting = IdleDevice()
    pseudo = Device("cpu-e", 1, "cpu", "cpu")
    accounting.ledger.add_device(pseudo, accounting.second * SECOND_NS)
    accounting.ledger.assign(
        Assignment("p", Role.DECODE, (pseudo.gpu,), EngineState.READY, 0, model_name="m")
    )
    accounting.serve("other", 20)
    accounting.ledger.forget("p")
    (removed,) = accounting.ledger.removed_accounts()
    total = sum(removed.slice_ns.values())

    accounting.ledger.forget_model("m")
    (removed,) = accounting.ledger.removed_accounts()

    assert {cell.model_name for cell in removed.slice_ns} <= {"", FORGOTTEN_MODEL}
    assert sum(removed.slice_ns.values()) == total > 0
