"""Finds the best prefill step and decode batch of an engine with few probes."""
