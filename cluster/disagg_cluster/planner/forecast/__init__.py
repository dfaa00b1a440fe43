"""The load to come, with the bands that its own past errors ask for."""
