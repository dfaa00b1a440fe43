"""Step records of engines on their way into the accounting."""
