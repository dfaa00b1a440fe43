"""Writes the generated files of the chart: rules, dashboards, their values, the README."""
