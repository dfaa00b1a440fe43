"""Who holds a lock on a file, by the kernel's own list."""

from __future__ import annotations

import os
from pathlib import Path

_TABLE = Path("/proc/locks")


def flock_holder(found: os.stat_result, table: Path = _TABLE) -> int | None:
    """The process that took the `flock` of a file; None if none is listed, or it has no pid here.

    Args:
        found: The file.
        table: The kernel's list: `1: FLOCK ADVISORY WRITE PID MAJOR:MINOR:INODE START END`, the
            first two numbers of the file hexadecimal; a line of one who waits has an arrow.
    """
    device = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    try:
        lines = table.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        words = line.split()
        if len(words) == 8 and words[1:4] == ["FLOCK", "ADVISORY", "WRITE"] and words[5] == device:
            return int(words[4]) if words[4].isdigit() and words[4] != "0" else None
    return None
