"""Attributes engines' time to phases, by learned step costs or by metrics pages."""
