"""Processes as procfs shows them."""
