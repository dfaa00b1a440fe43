"""Where an engine's seconds are known from when it tells no steps, and which source is used."""

from disagg_exporter.sources.choice import Heard, choose
from disagg_exporter.sources.led import LeadersShare
from disagg_exporter.sources.shares import PhaseShares
from disagg_exporter.sources.stretches import Stretches, role_window

__all__ = ["Heard", "LeadersShare", "PhaseShares", "Stretches", "choose", "role_window"]
