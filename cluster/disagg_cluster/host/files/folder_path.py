"""Whether a path is a folder, or may become one."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def why_no_folder(path: Path) -> str:
    """What keeps a path from being a folder; empty if it is one, or may become one.

    Permissions are not looked at: who checks need not be who uses it.
    """
    for place in (path, *path.parents):
        try:
            mode = place.stat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            return "" if error.errno == errno.EACCES else str(error.strerror)
        if not stat.S_ISDIR(mode):
            return "is no folder" if place == path else f"cannot be made: {place} is no folder"
        if place != path and os.statvfs(place).f_flag & os.ST_RDONLY:
            return f"cannot be made: {place} is read-only"
        return ""
    return ""
