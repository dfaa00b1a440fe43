"""A worker's lifecycle as pure decisions: states, restarts, crashes, pausing, hanging."""
