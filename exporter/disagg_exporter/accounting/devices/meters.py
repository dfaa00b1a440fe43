"""Activity and throttling of a device, integrated over time as read.

Nothing here waits for the watermark: an engine's late record changes who used a second, not how
active the device was in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from disagg_exporter.model import SECOND_NS, ActivityCell, DeviceReading, Role, Throttle, Unit

_UNITS = (Unit.GRAPHICS, Unit.SM, Unit.TENSOR, Unit.DRAM)


class Meters:
    """Activity and throttling of one device, in (fractions of) nanoseconds.

    A key exists, at 0, once the device has reported its value for the first time.
    """

    def __init__(self) -> None:
        self.throttled: Counter[Throttle] = Counter()
        self._activity: Counter[ActivityCell] = Counter()
        self._lengths: Counter[ActivityCell] = Counter()
        # The device's present role and owner, and the activity of each of `_UNITS` and the time it
        # was read for, not added to the sums yet: ten readings a second of one owner need only one
        # addition.
        self._owner: tuple[Role, tuple[str, str]] = Role.NONE, ("", "")
        self._since: list[int | None] = [None] * len(_UNITS)
        self._lengths_since = [0] * len(_UNITS)

    @property
    def activity(self) -> Counter[ActivityCell]:
        """The activity of each unit by role and owner."""
        self._add_up()
        return self._activity

    @property
    def lengths(self) -> Counter[ActivityCell]:
        """The time over which each unit's activity was read, by the same keys."""
        self._add_up()
        return self._lengths

    def resume(
        self,
        activity: Iterable[tuple[ActivityCell, int]],
        lengths: Iterable[tuple[ActivityCell, int]],
        throttled: Iterable[tuple[Throttle, int]],
    ) -> None:
        """Continue with the sums of a checkpoint."""
        self._activity.update(dict(activity))
        self._lengths.update(dict(lengths))
        self.throttled.update(dict(throttled))

    def read(
        self, reading: DeviceReading, before_ns: int | None, role: Role, owner: tuple[str, str]
    ) -> None:
        """Add a reading's values over the time since the previous one, at most a second.

        Args:
            reading: The device's reading.
            before_ns: When it was read last; None at its first reading.
            role: The device's role at the reading.
            owner: The (model name, namespace) it serves then.
        """
        length_ns = 0
        if before_ns is not None:
            # After a gap a reading says nothing about the gap.
            length_ns = max(min(reading.t_ns - before_ns, SECOND_NS), 0)
        graphics_ratio = reading.graphics_ratio
        if graphics_ratio is None:
            graphics_ratio = reading.busy_ratio
        ratios = graphics_ratio, reading.sm_ratio, reading.tensor_ratio, reading.dram_ratio
        if (role, owner) != self._owner:
            self._add_up()
            self._owner = role, owner
        for place, ratio in enumerate(ratios):
            if ratio is not None:
                self._since[place] = (self._since[place] or 0) + max(round(length_ns * ratio), 0)
                self._lengths_since[place] += length_ns
        if reading.throttles is not None:
            if not self.throttled:
                self.throttled.update(dict.fromkeys(Throttle, 0))
            for reason in reading.throttles:
                self.throttled[reason] += length_ns

    def _add_up(self) -> None:
        role, owner = self._owner
        for place, unit in enumerate(_UNITS):
            active_ns = self._since[place]
            if active_ns is not None:
                cell = ActivityCell(role, unit, *owner)
                self._activity[cell] += active_ns
                self._lengths[cell] += self._lengths_since[place]
                self._since[place], self._lengths_since[place] = None, 0
