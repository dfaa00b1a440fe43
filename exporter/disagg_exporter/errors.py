"""The one parent of everything we raise on purpose, and how texts from outside are quoted."""

EXIT_INTERRUPTED = 130
"""What a command returns that a Ctrl-C has ended: 128 and SIGINT's number, as in every shell."""


class DisaggError(Exception):
    """Something a person or the caller can act on; its text says what and how.

    `exit_code` is what a command that ends by it returns: 1 failed, 2 bad input.

    Args:
        cause: Its text without the values that may change from one time to the next. Two errors
            of one cause are one event for loggers that log changes only.
    """

    exit_code: int = 1

    def __init__(self, *args: object, cause: str = "") -> None:
        super().__init__(*args)
        self._cause = cause

    @property
    def cause(self) -> str:
        """What is wrong, in words that do not change as long as it is the same."""
        return self._cause or str(self)


def escaped(text: str) -> str:
    """Return a text from outside, on one line and without terminal control characters."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def escaped_lines(text: str) -> str:
    """Return a text that quotes some from outside without control characters, its lines kept."""
    return "\n".join(map(escaped, text.split("\n")))
