"""What an engine is for: markers in, a role with its reasons out."""
