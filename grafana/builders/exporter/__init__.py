"""The dashboard of the exporters themselves."""
