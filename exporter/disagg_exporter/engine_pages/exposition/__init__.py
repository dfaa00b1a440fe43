"""Reads the Prometheus text format fast, by the layout of the previous page."""
