"""Sources of readings: a node, or a Prometheus for several."""
