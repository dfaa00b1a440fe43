"""Requests to a running daemon: decided purely, done one change at a time, answered in steps."""
