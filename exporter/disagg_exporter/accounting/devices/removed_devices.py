"""Sums that outlive a device or a model's name: no counter of the node may fall.

Model names are labels that engines choose. A device's cells sum to its time, so nothing may be
removed from them; the sums of a forgotten name stay in the device's total and in no model's.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from disagg_exporter.model import FORGOTTEN_MODEL, ActivityCell, Cell, Device, DeviceAccount, Role
from disagg_exporter.model.checkpoints import RemovedCheckpoint

_Key = TypeVar("_Key", Cell, ActivityCell)


def fold(sums: Counter[_Key] | None, model_name: str) -> None:
    """Move a model's sums to the unnamed model."""
    for key in [key for key in sums or () if key.model_name == model_name]:
        assert sums is not None
        unnamed = key._replace(model_name=FORGOTTEN_MODEL, engine_namespace="")
        sums[unnamed] += sums.pop(key)


@dataclass(slots=True)
class _Sums:
    """The final sums of all devices of one name."""

    slice_ns: Counter[Cell] = field(default_factory=Counter)
    active_slice_ns: Counter[ActivityCell] = field(default_factory=Counter)
    read_slice_ns: Counter[ActivityCell] = field(default_factory=Counter)
    microjoules: Counter[Cell] | None = None
    metered_slice_ns: Counter[Cell] = field(default_factory=Counter)


class RemovedDevices:
    """The final sums of removed devices, by the devices' names."""

    def __init__(self) -> None:
        self._by_gpu_name: defaultdict[str, _Sums] = defaultdict(_Sums)

    def add(self, account: DeviceAccount) -> None:
        """Add the final sums of a device."""
        sums = self._by_gpu_name[account.device.gpu_name]
        sums.slice_ns.update(account.slice_ns)
        sums.active_slice_ns.update(account.active_slice_ns)
        sums.read_slice_ns.update(account.read_slice_ns)
        if account.microjoules is not None:
            sums.microjoules = sums.microjoules or Counter()
            sums.microjoules.update(account.microjoules)
            sums.metered_slice_ns.update(account.metered_slice_ns)

    def forget_model(self, model_name: str) -> None:
        """Move a model's sums to the unnamed model."""
        for sums in self._by_gpu_name.values():
            fold(sums.slice_ns, model_name)
            fold(sums.active_slice_ns, model_name)
            fold(sums.read_slice_ns, model_name)
            fold(sums.microjoules, model_name)
            fold(sums.metered_slice_ns, model_name)

    def checkpoint(self) -> tuple[RemovedCheckpoint, ...]:
        """Return the sums."""
        return tuple(
            RemovedCheckpoint(
                gpu_name,
                tuple(sums.slice_ns.items()),
                tuple(sums.active_slice_ns.items()),
                None if sums.microjoules is None else tuple(sums.microjoules.items()),
                tuple(sums.metered_slice_ns.items()),
                tuple(sums.read_slice_ns.items()),
            )
            for gpu_name, sums in self._by_gpu_name.items()
        )

    def resume(self, before: Iterable[RemovedCheckpoint]) -> None:
        """Continue with the sums of a checkpoint."""
        for removed in before:
            self._by_gpu_name[removed.gpu_name] = _Sums(
                Counter(dict(removed.slice_ns)),
                Counter(dict(removed.active_slice_ns)),
                Counter(dict(removed.read_slice_ns)),
                None if removed.microjoules is None else Counter(dict(removed.microjoules)),
                Counter(dict(removed.metered_slice_ns)),
            )

    def accounts(self) -> tuple[DeviceAccount, ...]:
        """Return the sums, one account for all removed devices of the same name."""
        return tuple(
            DeviceAccount(
                device=Device(gpu="", index=-1, gpu_name=gpu_name, device="gone"),
                role=Role.NONE,
                start_ns=0,
                watermark_ns=0,
                slice_ns=dict(sums.slice_ns),
                active_slice_ns=dict(sums.active_slice_ns),
                read_slice_ns=dict(sums.read_slice_ns),
                microjoules=None if sums.microjoules is None else dict(sums.microjoules),
                metered_slice_ns=dict(sums.metered_slice_ns),
            )
            for gpu_name, sums in self._by_gpu_name.items()
        )
