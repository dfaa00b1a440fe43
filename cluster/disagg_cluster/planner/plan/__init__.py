"""From futures of load to GPUs by phase: what is needed, what to do when, and why."""
