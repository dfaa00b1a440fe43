"""Busy time by phase of engines that report no steps, and which source is used."""

from disagg_exporter.attribution.pages.page_windows import (
    LastReceived,
    LeaderShare,
    PageWindows,
    choose_source,
    role_window,
)
from disagg_exporter.attribution.pages.prefill_shares import PhaseShares

__all__ = [
    "LastReceived",
    "LeaderShare",
    "PageWindows",
    "PhaseShares",
    "choose_source",
    "role_window",
]
