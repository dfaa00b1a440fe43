"""How full engines are, learned from their steps and pages (accounting A9, docs/capacity.md)."""

from disagg_exporter.capacity.node import CapacityModel

__all__ = ["CapacityModel"]
