"""Copies the engine's side of us into a folder that an engine gets on its PYTHONPATH."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

from disagg_exporter.errors import DisaggError

_MOUNT = (
    "DIR must be a folder in which this user may write, such as an emptyDir mounted there "
    "(docs/kubernetes-engines.md)"
)
_IN_THE_WAY = "something else is in its place: remove it or choose another DIR"
_FULL = "make room, or choose another DIR"
_WAY_OUT = {
    errno.EEXIST: _IN_THE_WAY,
    errno.ENOTDIR: _IN_THE_WAY,
    errno.EISDIR: _IN_THE_WAY,
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
}


class PluginCopyError(DisaggError):
    """The plugin cannot be copied; says where and why."""


def copy_plugin(source: Path, target: Path) -> tuple[Path, ...]:
    """Copy the plugin and its metadata, readable by everybody; return the files' new paths.

    Engines run as any user. What is in the target already stays, or is replaced by its like.

    Raises:
        PluginCopyError: A folder cannot be made or a file not be written.
    """
    copied = []
    try:
        for file in sorted(source.rglob("*")):
            if not file.is_file() or "__pycache__" in file.parts:
                continue
            to = target / file.relative_to(source)
            to.parent.mkdir(parents=True, exist_ok=True)
            to.parent.chmod(0o755)
            shutil.copyfile(file, to)
            to.chmod(0o644)
            copied.append(to)
    except OSError as error:
        where = "" if error.filename is None else f"{error.filename}: "
        way_out = _WAY_OUT.get(error.errno or 0, _MOUNT)
        raise PluginCopyError(
            f"cannot copy the plugin into {target}: {where}{error.strerror}; {way_out}"
        ) from None
    return tuple(copied)
