"""Commands that probe an engine for its best limits."""
