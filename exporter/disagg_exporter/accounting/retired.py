"""What devices had used that are no more: the node's sums must not go down when one goes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from disagg_exporter.accounting.forgotten import fold
from disagg_exporter.model import ActivityCell, Cell, Device, DeviceAccount, Role
from disagg_exporter.model.checkpoints import RemovedCheckpoint


@dataclass(slots=True)
class _Sums:
    """All closed books of devices of one name."""

    cells: Counter[Cell] = field(default_factory=Counter)
    activity: Counter[ActivityCell] = field(default_factory=Counter)
    energy: Counter[Cell] | None = None


class Retired:
    """The closed books of devices that have gone, added up by the devices' names."""

    def __init__(self) -> None:
        self._by_gpu_name: defaultdict[str, _Sums] = defaultdict(_Sums)

    def take(self, account: DeviceAccount) -> None:
        """Take over the books of a device; they do not change any more."""
        sums = self._by_gpu_name[account.device.gpu_name]
        sums.cells.update(account.cells)
        sums.activity.update(account.activity_seconds)
        if account.energy_joules is not None:
            sums.energy = sums.energy or Counter()
            sums.energy.update(account.energy_joules)

    def forget_model(self, model_name: str) -> None:
        """Take the name off what a model used."""
        for sums in self._by_gpu_name.values():
            fold(sums.cells, model_name)
            fold(sums.energy, model_name)
            fold(sums.activity, model_name)

    def checkpoint(self) -> tuple[RemovedCheckpoint, ...]:
        """Return the sums."""
        return tuple(
            RemovedCheckpoint(
                gpu_name,
                tuple(sums.cells.items()),
                tuple(sums.activity.items()),
                None if sums.energy is None else tuple(sums.energy.items()),
            )
            for gpu_name, sums in self._by_gpu_name.items()
        )

    def resume(self, before: Iterable[RemovedCheckpoint]) -> None:
        """Go on with the sums of before."""
        for removed in before:
            self._by_gpu_name[removed.gpu_name] = _Sums(
                Counter(dict(removed.seconds)),
                Counter(dict(removed.activity_seconds)),
                None if removed.joules is None else Counter(dict(removed.joules)),
            )

    def accounts(self) -> tuple[DeviceAccount, ...]:
        """Return the sums, one account for all devices of a name; no such device is there."""
        return tuple(
            DeviceAccount(
                device=Device(gpu="", index=-1, gpu_name=gpu_name, device="gone"),
                role=Role.NONE,
                start_ns=0,
                watermark_ns=0,
                cells=dict(sums.cells),
                activity_seconds=dict(sums.activity),
                energy_joules=None if sums.energy is None else dict(sums.energy),
            )
            for gpu_name, sums in self._by_gpu_name.items()
        )
