"""Processes as reported by procfs."""
