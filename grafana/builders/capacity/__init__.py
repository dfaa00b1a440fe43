"""The Capacity dashboard: one module for some rows, and what they ask."""
