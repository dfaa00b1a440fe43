"""The interface of a source of readings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from disagg_cluster.top.readings.values import LiveReading
from disagg_cluster.top.view.values import Links


class ReadingSource(Protocol):
    """Provides readings; used by one thread."""

    @property
    def title(self) -> str:
        """What the readings are of."""

    @property
    def links(self) -> Links:
        """Related pages and logs."""

    def past(self) -> Sequence[LiveReading]:
        """Older readings of devices only, oldest first; empty if none are stored."""

    def earlier(self) -> LiveReading | None:
        """A complete reading from a minute ago, as the base of rates; None if there is none."""

    def read(self) -> LiveReading:
        """The current reading; raises `DisaggError` with the reason if there is none."""
