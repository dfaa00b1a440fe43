"""Where an engine's seconds are known from when it tells no steps, and which source is used."""

from disagg_exporter.attribution.pages.choice import Heard, choose
from disagg_exporter.attribution.pages.leader_share import LeadersShare
from disagg_exporter.attribution.pages.page_windows import Stretches, role_window
from disagg_exporter.attribution.pages.prefill_shares import PhaseShares

__all__ = ["Heard", "LeadersShare", "PhaseShares", "Stretches", "choose", "role_window"]
