"""Forecasts of the load, with bands sized by their own past errors."""
