"""GPU-seconds by phase: the heart. Rules in docs/accounting.md, tests in tests/unit/exporter."""

from disagg_exporter.accounting.ledger import Ledger
from disagg_exporter.accounting.rules import Rules

__all__ = ["Ledger", "Rules"]
