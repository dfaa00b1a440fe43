"""Activity of GPUs from the page of a dcgm-exporter."""
