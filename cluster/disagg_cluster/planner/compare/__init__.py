"""Compares two time spans at equal load."""
