"""The one parent of everything we raise on purpose."""


class DisaggError(Exception):
    """Something a person or the caller can act on; its text says what and how."""
