"""Prometheus: client of its HTTP API, credentials, a local server for the demo."""
