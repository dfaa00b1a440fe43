"""Plans the changes of an installation from desired files, present files and our record."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from disagg_cluster.host.files.atomic_write import (
    make_folder_for_all,
    write_for_all,
    write_whole,
)
from disagg_exporter.errors import DisaggError


@dataclass(frozen=True, slots=True)
class DesiredFile:
    """A file that should exist. One that is `theirs` is written once and then the reader's."""

    path: Path
    text: str
    theirs: bool = False


class Action(StrEnum):
    """What happens to one file."""

    CREATE = "create"
    UPDATE = "update"
    REPLACE = "replace"
    SAME = "same"
    KEEP = "keep"
    LEFT = "left"
    REMOVE = "remove"

    @property
    def writes(self) -> bool:
        """Whether the file is written."""
        return self in (Action.CREATE, Action.UPDATE, Action.REPLACE)


WHY = {
    Action.CREATE: "is not there",
    Action.UPDATE: "as we wrote it, and now says something else",
    Action.REPLACE: "was changed by somebody: replaced because of --force",
    Action.SAME: "is as it should be",
    Action.KEEP: "was changed by somebody: kept, --force replaces it",
    Action.LEFT: "was written by an earlier install and is no longer needed",
    Action.REMOVE: "as we wrote it",
}
_YOURS = "is yours"


@dataclass(frozen=True, slots=True)
class FileChange:
    """One file: what happens to it, its new text, and the difference from the present one."""

    action: Action
    path: Path
    text: str
    diff: str = ""
    why: str = ""
    theirs: bool = False


def plan(
    files: Iterable[DesiredFile],
    there: Mapping[Path, str],
    written: Mapping[str, str],
    *,
    force: bool = False,
    tidy: bool = False,
) -> tuple[FileChange, ...]:
    """Plan the change of every file.

    Args:
        files: The desired files.
        there: Texts of those files that exist, and of existing ones in `written`.
        written: What the previous installation wrote: digests by path.
        force: Replace files that somebody else has changed; never those that are theirs.
        tidy: Remove files that are no longer needed and unchanged since we wrote them.
    """
    steps = [
        _step(file, there.get(file.path), written.get(str(file.path)), force) for file in files
    ]
    known = {str(step.path) for step in steps}
    for path in sorted(set(written) - known):
        if Path(path) in there:
            ours = tidy and written[path] == digest(there[Path(path)])
            action = Action.REMOVE if ours else Action.LEFT
            steps.append(FileChange(action, Path(path), "", why=WHY[Action.LEFT]))
    return tuple(steps)


def removal(
    there: Mapping[Path, str], written: Mapping[str, str], *, force: bool = False
) -> tuple[FileChange, ...]:
    """Plan the removal of every file that was written.

    Args:
        there: Texts of those that exist.
        written: What the installation wrote: digests by path.
        force: Remove files that somebody else has changed, too.
    """
    return tuple(
        _removed(Path(name), there[Path(name)], was, force)
        for name, was in sorted(written.items())
        if Path(name) in there
    )


def _removed(path: Path, there: str, written: str, force: bool) -> FileChange:
    if written == digest(there):
        return FileChange(Action.REMOVE, path, "", why=WHY[Action.REMOVE])
    if force:
        return FileChange(Action.REMOVE, path, "", why="was changed by somebody: --force")
    return FileChange(
        Action.KEEP, path, "", why="was changed by somebody: kept, --force removes it"
    )


def manifest(steps: Iterable[FileChange], before: Mapping[str, str]) -> dict[str, str]:
    """Return the record once the steps are done: digests of our own texts by path."""
    ours = dict(before)
    for step in steps:
        if step.action.writes or (step.action is Action.SAME and step.why != _YOURS):
            ours[str(step.path)] = digest(step.text)
        elif step.action is Action.REMOVE:
            ours.pop(str(step.path), None)
    return ours


def digest(text: str) -> str:
    """Return the digest by which a text is recognised, also one that is not in UTF-8."""
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()


def _step(file: DesiredFile, there: str | None, written: str | None, force: bool) -> FileChange:
    if there is None:
        action = Action.CREATE
    elif file.theirs:
        # It is meant to be filled in, and no option of ours may undo that.
        return FileChange(Action.SAME, file.path, there, why=_YOURS)
    elif there == file.text:
        action = Action.SAME
    elif written == digest(there):
        action = Action.UPDATE
    else:
        action = Action.REPLACE if force else Action.KEEP
    diff = "" if action is Action.SAME else _diff(file.path, there or "", file.text)
    return FileChange(action, file.path, file.text, diff, WHY[action], file.theirs)


def _diff(path: Path, old: str, new: str) -> str:
    lines = difflib.unified_diff(
        old.splitlines(keepends=True),
        new.splitlines(keepends=True),
        str(path) if old else "/dev/null",
        str(path),
    )
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


class InstallError(DisaggError):
    """A file that cannot be read or written; the text says which and why."""


def read_texts(paths: Iterable[Path]) -> dict[Path, str]:
    """Return the texts of the existing files; raises InstallError if one cannot be read."""
    found = {}
    for path in paths:
        try:
            found[path] = path.read_bytes().decode("utf-8", errors="surrogateescape")
        except FileNotFoundError:
            continue
        except OSError as error:
            raise InstallError(f"cannot read {path}: {error.strerror}") from error
    return found


@dataclass(frozen=True, slots=True)
class Manifest:
    """What the previous installation wrote, digests by path, and with which options."""

    files: Mapping[str, str]
    choices: Mapping[str, object]


_ROOT = Path("/")


def read_manifest(path: Path, root: Path = _ROOT) -> Manifest:
    """Read the record of the previous installation; empty where there was none.

    Paths in an image's record are the image's own, so that it is also right once the image runs.
    They are returned as paths below `root`, where the image is now.

    Raises:
        InstallError: It cannot be parsed: then no existing file may be considered ours.
    """
    text = read_texts([path]).get(path)
    if text is None:
        return Manifest({}, {})
    try:
        value = json.loads(text)
        files = {
            str(root / str(name).lstrip("/")): str(digest)
            for name, digest in value["files"].items()
        }
        return Manifest(files, dict(value.get("choices", {})))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InstallError(f"{path} is not what we wrote: move it away") from error


def carry_out(
    steps: Iterable[FileChange],
    manifest_path: Path,
    choices: Mapping[str, object],
    root: Path = _ROOT,
) -> None:
    """Write and remove files as planned, and record it, with the options that led to it.

    Raises:
        InstallError: A file cannot be written or removed; earlier ones are, and are recorded.
    """
    done: list[FileChange] = []
    before = read_manifest(manifest_path, root)
    try:
        for step in steps:
            if step.action.writes:
                _write(step.path, step.text, write_whole if step.theirs else write_for_all)
            elif step.action is Action.REMOVE:
                _remove(step.path)
            done.append(step)
    finally:
        after = Manifest(manifest(done, before.files), choices)
        if after != before:
            files = {
                str(_ROOT / Path(name).relative_to(root)): each
                for name, each in sorted(after.files.items())
            }
            value = {"choices": after.choices, "files": files}
            _write(manifest_path, f"{json.dumps(value, indent=1)}\n")


def remove_files(
    steps: Iterable[FileChange], manifest_path: Path, ours: Collection[Path], root: Path = _ROOT
) -> None:
    """Remove files as planned, all records, and the folders in `ours` that are left empty.

    Raises:
        InstallError: A file cannot be removed; earlier ones are, and the rest is recorded.
    """
    gone = [step for step in steps if step.action is Action.REMOVE]
    carry_out(gone, manifest_path, read_manifest(manifest_path, root).choices, root)
    _remove(manifest_path)
    held = {
        folder
        for step in gone
        for folder in step.path.parents
        if any(folder.is_relative_to(each) for each in ours)
    }
    # The deepest first; a folder that holds other files stays.
    for folder in sorted(held, key=lambda path: len(path.parts), reverse=True):
        if folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir()):
            folder.rmdir()


def _write(path: Path, text: str, write: Callable[[Path, bytes], None] = write_whole) -> None:
    try:
        make_folder_for_all(path.parent)
        write(path, text.encode("utf-8", errors="surrogateescape"))
    except OSError as error:
        raise InstallError(f"cannot write {path}: {error.strerror or error}") from error


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise InstallError(f"cannot remove {path}: {error.strerror}") from error
