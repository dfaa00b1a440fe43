"""An engine's metrics page: its text to the few values we use, and two pages to what happened."""
