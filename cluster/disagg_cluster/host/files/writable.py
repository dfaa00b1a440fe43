"""Files that a command is asked to write, and whether they can be, before minutes are spent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from disagg_exporter.errors import DisaggError


class CannotWriteError(DisaggError):
    """A file cannot be written; the text says which and why."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise `CannotWriteError` for an `OSError` of the block, which writes the file."""
    try:
        yield
    except OSError as error:
        raise CannotWriteError(f"cannot write {path}: {error.strerror or error}") from error


def check_writable(path: Path) -> None:
    """Raise `CannotWriteError` if a file cannot be written; its present content is kept."""
    with writing(path):
        is_new = not path.exists()
        path.open("ab").close()
        if is_new:
            path.unlink()
