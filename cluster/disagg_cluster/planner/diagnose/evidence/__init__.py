"""Exported series as evidence: what each engine did, window by window."""
