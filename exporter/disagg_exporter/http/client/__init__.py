"""HTTP client of the daemon: many small pages polled from one thread over kept connections."""
