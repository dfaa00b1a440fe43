"""HTTP client of the daemon: polls many small pages on one thread over kept connections."""
