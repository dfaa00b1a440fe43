"""Costs of steps by measured tables: format, interpolation, shipped tables."""
