"""Whether a file can be written, before minutes are spent on what it is to contain."""

from __future__ import annotations

from pathlib import Path


def check_writable(path: Path) -> None:
    """Raise `OSError` if a file cannot be written; its present content is kept."""
    is_new = not path.exists()
    path.open("ab").close()
    if is_new:
        path.unlink()
