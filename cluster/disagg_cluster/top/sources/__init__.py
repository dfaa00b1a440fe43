"""Where looks come from: a node, or a Prometheus for several."""
