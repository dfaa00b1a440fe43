"""Busy time by phase of engines that report no steps, and which source is used."""
