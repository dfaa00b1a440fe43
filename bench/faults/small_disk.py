"""A file system small enough to fill."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def small_disk(folder: Path, size: str = "2m") -> Iterator[None]:
    """Mount a separate file system, small enough to fill, on a folder until the block ends."""
    folder.mkdir(mode=0o700)
    argv = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", str(folder)]
    subprocess.run(argv, check=True)
    try:
        yield
    finally:
        while os.path.ismount(folder):
            subprocess.run(["umount", "-l", str(folder)], check=True)
