"""Finds how large a step, and how large a batch, an engine should work on: by few probes."""
