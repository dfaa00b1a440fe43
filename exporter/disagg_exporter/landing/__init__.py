"""The page for people: a node's GPUs by phase over the last minute, and what is wrong with it."""

from disagg_exporter.landing.page import AccountHistory, Landing

__all__ = ["AccountHistory", "Landing"]
