"""Engines as observed: types, names, role resolution, merging of observations."""
