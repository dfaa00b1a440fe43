"""What a source of looks is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from disagg_cluster.top.look.values import Look
from disagg_cluster.top.view.values import Links


class LookSource(Protocol):
    """Reads looks; used by one thread."""

    @property
    def title(self) -> str:
        """Whom the looks are of."""

    @property
    def links(self) -> Links:
        """Where more is to be had."""

    def past(self) -> Sequence[Look]:
        """Older looks, the oldest first; only of devices, and none where nobody keeps them."""

    def earlier(self) -> Look | None:
        """A whole look of a minute ago, from which rates are counted; None where nobody has it."""

    def read(self) -> Look:
        """The present look; raises `DisaggError` where there is none, with the reason."""
