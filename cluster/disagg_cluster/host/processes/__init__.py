"""Processes as procfs tells of them."""
