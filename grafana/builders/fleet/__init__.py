"""The Fleet dashboard."""
