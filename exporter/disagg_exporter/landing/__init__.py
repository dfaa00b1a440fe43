"""The page for people: a node's GPUs by phase over the last minute, and what is wrong with it."""

from disagg_exporter.landing.lookback import Lookback
from disagg_exporter.landing.page import Landing

__all__ = ["Landing", "Lookback"]
