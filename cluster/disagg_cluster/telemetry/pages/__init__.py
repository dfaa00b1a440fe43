"""Metrics pages of engines, scraped and kept."""
