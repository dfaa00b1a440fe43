"""Cost model of steps: splits a mixed step's time between prefill and decode."""
