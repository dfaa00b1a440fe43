"""Control requests to a running daemon: pure decisions, one change at a time, streamed replies."""
