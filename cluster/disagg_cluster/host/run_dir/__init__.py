"""The run folder: its layout, its lock, its restoration while a daemon runs."""
