"""How an engine's time is attributed to phases; so far, its learned costs as plain values."""
