"""GPUs by phase for forecast loads: what is needed, what to do when, and why."""
