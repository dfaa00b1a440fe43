"""A worker's lifecycle as pure decisions: states, restarts, crashes, pauses, hangs."""
