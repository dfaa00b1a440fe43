"""The folders that pods mount: those of their steps sockets, and the one with the plugin.

Pods may write into theirs if their manifests say so. Entries are inspected without following links,
and only our own socket is ever removed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from disagg_cluster.discovery.pod_steps.admission import SOCKET_NAME
from disagg_exporter.errors import DisaggError

# Engines run as any user: they may traverse it, but must know a name to find it.
MODE = 0o711
MAX_ENTRIES = 4096


class PodFolderError(DisaggError):
    """A folder for a pod's socket that cannot be used; says which and why."""


def make_root(root: Path) -> None:
    """Create the parent of all pods' folders, or check the existing one."""
    with _wrap_errors(root):
        root.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            root.mkdir()
    _check_owner(root)


def entries(root: Path) -> tuple[str, ...]:
    """Return the entries of the root, at most `MAX_ENTRIES`."""
    with _wrap_errors(root), os.scandir(root) as inside:
        return tuple(entry.name for entry in islice(inside, MAX_ENTRIES))


def make_folder(root: Path, uid: str) -> Path:
    """Create a pod's folder, or check the kubelet's; return its socket's path."""
    folder = root / uid
    with _wrap_errors(folder), contextlib.suppress(FileExistsError):
        folder.mkdir()
    _check_owner(folder)
    return folder / SOCKET_NAME


def remove_folder(root: Path, uid: str) -> None:
    """Remove the folder of a pod that is gone, unless it contains files that are not ours."""
    folder = root / uid
    with _opened(folder) as descriptor:
        with contextlib.suppress(FileNotFoundError):
            status = os.stat(SOCKET_NAME, dir_fd=descriptor, follow_symlinks=False)
            if stat.S_ISSOCK(status.st_mode):
                os.unlink(SOCKET_NAME, dir_fd=descriptor)
        try:
            folder.rmdir()
        except OSError:
            raise PodFolderError(
                f"{folder}: its pod is gone and has left files in it; they are yours to remove"
            ) from None


def _check_owner(folder: Path) -> None:
    """Check that it is a folder of ours or of root's (the kubelet's); set its permissions."""
    with _opened(folder) as descriptor:
        if os.fstat(descriptor).st_uid not in (0, os.geteuid()):
            raise PodFolderError(f"{folder} belongs to somebody else")
        with _wrap_errors(folder):
            os.fchmod(descriptor, MODE)


@contextlib.contextmanager
def _wrap_errors(folder: Path) -> Iterator[None]:
    """Raise failures at a folder as `PodFolderError`."""
    try:
        yield
    except OSError as error:
        raise PodFolderError(f"{folder}: {error.strerror}") from None


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int]:
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise PodFolderError(f"{folder} is no folder of ours: {error.strerror}") from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)


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

    Engines run as any user. Files in the target stay, or are replaced by those of the same name.

    Raises:
        PluginCopyError: A folder cannot be created or a file not be written.
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
