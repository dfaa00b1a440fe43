"""Asks a node's daemon to move an engine, and polls it for progress."""
