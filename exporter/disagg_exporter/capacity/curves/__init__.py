"""Learned curves of throughput over batch size: knee, latency, utilization."""
