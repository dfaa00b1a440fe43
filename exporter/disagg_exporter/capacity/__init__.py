"""How full engines are, learned from what they tell (accounting A9, docs/capacity.md)."""

from disagg_exporter.capacity.node import CapacityModel

__all__ = ["CapacityModel"]
