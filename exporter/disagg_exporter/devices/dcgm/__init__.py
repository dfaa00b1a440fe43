"""GPU activity from the page of a dcgm-exporter."""
