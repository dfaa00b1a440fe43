"""Ways in which other exporters show what we know."""
