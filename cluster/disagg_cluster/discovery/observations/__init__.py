"""Observed engines: types, names, role resolution, merging of observations."""
