"""Writes what the chart repeats of other rooms: rules, dashboards, their values, the README."""
