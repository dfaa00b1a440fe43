"""Past load, from files and from any Prometheus-compatible API."""
