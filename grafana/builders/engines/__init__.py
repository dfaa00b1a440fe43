"""The Engines dashboard."""
