"""The Prometheus web-config file: TLS, passwords and headers of the metrics port.

The format is exporter-toolkit's (docs/web-configuration.md of prometheus/exporter-toolkit). What
Python's TLS cannot do is refused, never ignored silently.
"""
