"""How full engines are, learned from what they tell (accounting A9, docs/capacity.md)."""

from disagg_exporter.fullness.node import Fullness

__all__ = ["Fullness"]
