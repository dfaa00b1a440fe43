"""The commands that probe an engine for what to set."""
