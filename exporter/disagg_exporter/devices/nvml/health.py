"""What NVML tells of a GPU's health: why its clocks are held back, and its memory's errors.

The binding is an argument here (`nvml`, the module pynvml), so that one room alone imports it.
"""

from __future__ import annotations

from typing import Any

from disagg_exporter.devices.nvml.inventory import ask
from disagg_exporter.model import Throttle

_IDLE = 0x1
_REASONS = (
    (Throttle.POWER_CAP, 0x4),
    # By software, by hardware.
    (Throttle.THERMAL, 0x20 | 0x40),
    # Clocks halved or worse; the second is the brake that the power supply pulls.
    (Throttle.HW_SLOWDOWN, 0x8 | 0x80),
    (Throttle.SYNC_BOOST, 0x10),
)
_NAMED = _IDLE | sum(bits for _, bits in _REASONS)


def throttles_of(clocks_event_reasons: int) -> tuple[Throttle, ...]:
    """The reasons in a driver's bit mask; an idle GPU's low clocks are no throttling.

    `other` is every bit without a name here: clocks that somebody has set, and what drivers add.
    """
    found = [reason for reason, bits in _REASONS if clocks_event_reasons & bits]
    if clocks_event_reasons & ~_NAMED:
        found.append(Throttle.OTHER)
    return tuple(found)


def ecc_errors(nvml: Any, handle: Any) -> tuple[int | None, int | None]:
    """(corrected, uncorrected) memory errors in the GPU's whole life; None where not told."""

    def count(kind: int) -> int | None:
        told = ask(
            nvml,
            lambda h: nvml.nvmlDeviceGetTotalEccErrors(h, kind, nvml.NVML_AGGREGATE_ECC),
            handle,
        )
        return None if told is None else int(told)

    return (
        count(nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
        count(nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
    )
