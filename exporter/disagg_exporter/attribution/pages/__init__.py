"""Busy time by phase of engines that report no steps, and the choice of source."""
