"""The Exporter dashboard."""
