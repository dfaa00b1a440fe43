"""Attached engines: their state, view and step telemetry."""
