"""Where an engine's seconds are known from when it tells no steps, and which source is used."""

from disagg_exporter.attribution.pages.page_windows import (
    Heard,
    LeadersShare,
    Stretches,
    choose,
    role_window,
)
from disagg_exporter.attribution.pages.prefill_shares import PhaseShares

__all__ = ["Heard", "LeadersShare", "PhaseShares", "Stretches", "choose", "role_window"]
