"""The Node dashboard."""
