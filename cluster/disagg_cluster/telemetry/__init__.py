"""Telemetry received from engines: what it is, its bounds, and what outlives the daemon."""
