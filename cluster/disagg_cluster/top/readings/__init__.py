"""Readings: the content of metrics pages at one moment, as typed values."""
