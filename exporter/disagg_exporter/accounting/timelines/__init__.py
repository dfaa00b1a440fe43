"""An engine's execution over time, from step records or from windows between two scrapes."""
