"""Step telemetry: listener, messages and rows of records that engines send."""
