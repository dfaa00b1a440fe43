"""A pipe without a reader, for the output of a daemon."""

from __future__ import annotations

import contextlib
import os


class FullPipe:
    """A full pipe without a reader."""

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()
        os.set_blocking(self.writing, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(self.writing, b"x" * 4096)
        os.set_blocking(self.writing, True)

    def close(self) -> None:
        """Close both ends."""
        os.close(self.reading)
        os.close(self.writing)
