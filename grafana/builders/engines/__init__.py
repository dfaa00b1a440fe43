"""The dashboard of engines."""
