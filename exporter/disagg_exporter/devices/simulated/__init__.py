"""Simulated GPUs, driven by stand-in engines through files."""
