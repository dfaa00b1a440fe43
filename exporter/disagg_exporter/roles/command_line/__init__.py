"""Reads command lines and shell scripts of engines."""
