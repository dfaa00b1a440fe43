"""The one parent of everything we raise on purpose."""


class DisaggError(Exception):
    """Something a person or the caller can act on; its text says what and how.

    `exit_code` is what a command that ends by it returns: 1 failed, 2 bad input.
    """

    exit_code: int = 1
