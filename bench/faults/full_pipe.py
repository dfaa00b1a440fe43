"""A pipe that nobody reads, for what a daemon prints."""

from __future__ import annotations

import contextlib
import os


class FullPipe:
    """A pipe that nobody reads, filled to the brim."""

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
