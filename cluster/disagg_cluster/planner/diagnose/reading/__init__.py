"""Reads the series of a diagnosis from any API compatible with Prometheus."""
