"""Notifications of failed workers: a command, or a POST to a URL."""
