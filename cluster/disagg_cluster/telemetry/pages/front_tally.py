"""What one frontend or router has counted of users' requests, through its restarts. Pure."""

from __future__ import annotations

from dataclasses import replace

from disagg_exporter.engine_pages.fronts import FrontPage
from disagg_exporter.engine_pages.window import CumulativeCounts
from disagg_exporter.model import FrontCounts, RequestSource, ServingCounts


class FrontTally:
    """Counts on, by model, from page to page; what the first one counts is the past.

    A model that comes with a later page is counted from its first request: programs tell nothing
    of it before.

    Args:
        name: What it goes by.
        namespace: The Kubernetes namespace of the engines behind it.
        model_name: Whose requests those are of which it tells no model.
    """

    def __init__(self, name: str, namespace: str = "", model_name: str = "") -> None:
        self._name = name
        self._namespace = namespace
        self._model_name = model_name
        self._source = RequestSource.FRONTEND
        self._models: dict[str, CumulativeCounts] = {}
        self._is_first = True

    def take(self, page: FrontPage) -> None:
        """Take its next page."""
        self._source = page.source
        for model in page.models:
            name = model.model_name or self._model_name
            counts = self._models.get(name)
            if counts is None:
                counts = self._models[name] = CumulativeCounts()
                if not self._is_first:
                    counts.take(replace(model, serving=ServingCounts()))
            counts.take(model)
        self._is_first = False

    def restart(self) -> None:
        """Take the next page as that of another process, which began to count at 0."""
        for counts in self._models.values():
            counts.restart()

    def counts(self) -> FrontCounts:
        """Return what it has counted since its page was first seen."""
        by_model = {n: c.counts for n, c in self._models.items() if c.counts is not None}
        return FrontCounts(self._source, self._name, by_model, self._namespace)
