"""Files that we write for others to use, and never over what somebody has changed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from disagg_cluster.host.files.atomic_write import write_whole
from disagg_exporter.errors import DisaggError


class ExportError(DisaggError):
    """A file that cannot be written, or must not be; its text says which and why."""


def export(folder: Path, files: Mapping[str, str], *, force: bool = False) -> None:
    """Write `files` into `folder`, each in one go, and leave everything else there alone.

    Args:
        folder: Made if it is not there.
        files: Text by path within it.
        force: Replace files that differ.

    Raises:
        ExportError: A file cannot be written; or one is there with another text, and no `force`:
            then nothing was written.
    """
    changed = [name for name, text in files.items() if _differs(folder / name, text)]
    if changed and not force:
        which = "it" if len(changed) == 1 else "them"
        raise ExportError(f"{folder} has its own {', '.join(changed)}: --force replaces {which}")
    for name, text in files.items():
        path = folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, text.encode())
        except OSError as error:
            raise ExportError(f"cannot write {path}: {error.strerror or error}") from error


def _differs(path: Path, text: str) -> bool:
    try:
        return path.read_bytes() != text.encode()
    except OSError:
        # Not there; what cannot be read is told when it cannot be written.
        return False
