"""Commands that show a daemon's workers: their state and their logs."""
