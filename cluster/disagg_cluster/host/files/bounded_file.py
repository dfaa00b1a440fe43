"""Files of a person's, read whole up to a bound; what is no regular file is not read at all."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def read_bounded(path: Path, most_bytes: int) -> bytes:
    """Read a regular file, through links.

    A device or a pipe would never end, or never begin.

    Raises:
        OSError: It cannot be opened or read, is larger, or is no regular file; `strerror` tells.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    with os.fdopen(descriptor, "rb") as file:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"larger than {most_bytes} bytes", str(path))
    return content
