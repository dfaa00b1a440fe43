"""Accounting of GPU-seconds by phase. Rules: docs/accounting.md; tests: tests/unit/exporter."""

from disagg_exporter.accounting.intervals.rules import Rules
from disagg_exporter.accounting.ledger import Ledger

__all__ = ["Ledger", "Rules"]
