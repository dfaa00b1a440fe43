"""Intervals of time in integer nanoseconds, the rules of committing them and their phase."""
