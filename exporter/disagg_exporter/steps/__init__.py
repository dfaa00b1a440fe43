"""Step telemetry from engines: listener, messages and rows of records."""
