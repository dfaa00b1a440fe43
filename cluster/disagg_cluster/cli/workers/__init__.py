"""The commands that show a daemon's workers: how they stand, what they print."""
