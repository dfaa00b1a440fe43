"""A file that its readers find whole: as it was, or as it is now."""

from __future__ import annotations

import os
from pathlib import Path

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


def write_whole(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write a file beside its place, then move it there.

    Not synced: what a power cut leaves may be old or empty. Of what somebody laid where the
    unfinished file goes, a link is not followed, and a second name of another file not written to.

    Raises:
        OSError: It cannot be written; the file that was there still is.
    """
    unfinished = path.with_name(f".{path.name}.part")
    if not unfinished.is_symlink():
        unfinished.unlink(missing_ok=True)
    with os.fdopen(os.open(unfinished, _FLAGS, mode), "wb") as file:
        file.write(data)
    unfinished.replace(path)
