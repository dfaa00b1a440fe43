"""Health probes of workers."""
