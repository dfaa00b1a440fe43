"""Commands that steer a running daemon."""
