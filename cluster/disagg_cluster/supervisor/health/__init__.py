"""Probes of workers' health."""
