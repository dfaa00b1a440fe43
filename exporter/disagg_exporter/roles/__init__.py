"""Determines an engine's role, with reasons, from its markers."""
