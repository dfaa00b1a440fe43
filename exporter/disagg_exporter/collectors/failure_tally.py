"""How often collectors failed of a defect of ours, added up by kind: the sums outlive them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from disagg_exporter.model import CollectorStatus

_MOST_REMEMBERED = 1024


class FailureTally:
    """Sums over all collectors of a kind, such as `engine`, also of those that are no more.

    A collector leaves the page with its engine; a counter that left with it would step back.
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._remembered: dict[str, int] = {}

    def take(self, statuses: Iterable[CollectorStatus]) -> Mapping[str, int]:
        """Add what is new since the last call; return the sums by kind."""
        for status in statuses:
            name, failures = status.collector, status.unexpected_failures
            before = self._remembered.get(name, 0)
            # One that counts lower than before is another under the same name.
            self._counts[name.partition(":")[0]] += failures - before * (failures >= before)
            if failures or before:
                self._remembered[name] = failures
        while len(self._remembered) > _MOST_REMEMBERED:
            del self._remembered[next(iter(self._remembered))]
        return dict(self._counts)
