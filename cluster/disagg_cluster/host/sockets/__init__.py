"""Who listens on which TCP port of this host."""
