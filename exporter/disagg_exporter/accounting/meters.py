"""What a device tells of itself, added up over time as it is read (activity, throttling).

Nothing here waits for the watermark: an engine's late record changes who used a second, not how
active the device was in it.
"""

from __future__ import annotations

from collections import Counter

from disagg_exporter.accounting.rules import SECOND_NS
from disagg_exporter.model import ActivityCell, DeviceReading, Role, Throttle, Unit


class Meters:
    """Activity and throttling of one device, in (fractions of) nanoseconds.

    A key exists from the first time the device tells of it, at 0; what it never tells has none.
    """

    def __init__(self) -> None:
        self.activity: Counter[ActivityCell] = Counter()
        self.throttled: Counter[Throttle] = Counter()

    def read(
        self, reading: DeviceReading, before_ns: int | None, role: Role, owner: tuple[str, str]
    ) -> None:
        """Add a reading's values over the time since the one before, a second of it at most.

        Args:
            reading: What the device told.
            before_ns: When it told something last; None at its first reading.
            role: The device's role at the reading.
            owner: The (model name, namespace) it serves then.
        """
        length_ns = 0
        if before_ns is not None:
            # After a hole in the readings they say nothing about the hole.
            length_ns = max(min(reading.t_ns - before_ns, SECOND_NS), 0)
        graphics_ratio = reading.graphics_ratio
        if graphics_ratio is None:
            graphics_ratio = reading.busy_ratio
        for unit, ratio in (
            (Unit.GRAPHICS, graphics_ratio),
            (Unit.SM, reading.sm_ratio),
            (Unit.TENSOR, reading.tensor_ratio),
            (Unit.DRAM, reading.dram_ratio),
        ):
            if ratio is not None:
                cell = ActivityCell(role, unit, *owner)
                self.activity[cell] += max(round(length_ns * ratio), 0)
        if reading.throttles is not None:
            for reason in Throttle:
                self.throttled[reason] += length_ns if reason in reading.throttles else 0
