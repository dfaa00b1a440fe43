"""The Capacity dashboard: its rows and the selectors of their queries."""
