"""GPU-seconds by phase: the heart. Rules in docs/accounting.md, tests in tests/unit/exporter."""

from disagg_exporter.accounting.intervals.rules import Rules
from disagg_exporter.accounting.ledger import Ledger

__all__ = ["Ledger", "Rules"]
