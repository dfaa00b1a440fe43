"""What an installation changes: decided from what should be, what is there and what we wrote."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from disagg_cluster.host.files.atomic_write import write_whole
from disagg_exporter.errors import DisaggError


@dataclass(frozen=True, slots=True)
class DesiredFile:
    """A file that should be there. One that is `theirs` is written once and then the reader's."""

    path: Path
    text: str
    theirs: bool = False


class Action(StrEnum):
    """What becomes of one file."""

    CREATE = "create"
    UPDATE = "update"
    REPLACE = "replace"
    SAME = "same"
    KEEP = "keep"
    LEFT = "left"

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
}


@dataclass(frozen=True, slots=True)
class FileChange:
    """One file: what becomes of it, its new text, and the difference to what is there."""

    action: Action
    path: Path
    text: str
    diff: str = ""
    why: str = ""


def plan(
    files: Iterable[DesiredFile],
    there: Mapping[Path, str],
    written: Mapping[str, str],
    *,
    force: bool = False,
) -> tuple[FileChange, ...]:
    """Decide about every file.

    Args:
        files: What should be there.
        there: The texts of those files that are there, and of those in `written`.
        written: What the installation before has written: digests by path.
        force: Replace files that somebody else has changed; never those that are theirs.
    """
    steps = [
        _step(file, there.get(file.path), written.get(str(file.path)), force) for file in files
    ]
    known = {str(step.path) for step in steps}
    for path in sorted(set(written) - known):
        if Path(path) in there:
            steps.append(FileChange(Action.LEFT, Path(path), "", why=WHY[Action.LEFT]))
    return tuple(steps)


def manifest(steps: Iterable[FileChange], before: Mapping[str, str]) -> dict[str, str]:
    """What to remember once the steps are done: digests of our own texts by path."""
    ours = dict(before)
    for step in steps:
        if step.action.writes or step.action is Action.SAME:
            ours[str(step.path)] = digest(step.text)
    return ours


def digest(text: str) -> str:
    """By which a text is known again."""
    return hashlib.sha256(text.encode()).hexdigest()


def _step(file: DesiredFile, there: str | None, written: str | None, force: bool) -> FileChange:
    if there is None:
        action = Action.CREATE
    elif there == file.text:
        action = Action.SAME
    elif file.theirs:
        # It is written to be filled in, and no option of ours may undo that.
        return FileChange(Action.SAME, file.path, there, why="is yours")
    elif written == digest(there):
        action = Action.UPDATE
    else:
        action = Action.REPLACE if force else Action.KEEP
    diff = "" if action is Action.SAME else _diff(file.path, there or "", file.text)
    return FileChange(action, file.path, file.text, diff, WHY[action])


def _diff(path: Path, old: str, new: str) -> str:
    lines = difflib.unified_diff(
        old.splitlines(keepends=True),
        new.splitlines(keepends=True),
        str(path) if old else "/dev/null",
        str(path),
    )
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


class InstallError(DisaggError):
    """A file that cannot be read or written; its text says which and why."""


def read_texts(paths: Iterable[Path]) -> dict[Path, str]:
    """The texts of those that are there; raises InstallError where one cannot be read."""
    found = {}
    for path in paths:
        try:
            found[path] = path.read_bytes().decode("utf-8", errors="surrogateescape")
        except FileNotFoundError:
            continue
        except OSError as error:
            raise InstallError(f"cannot read {path}: {error.strerror}") from error
    return found


def read_manifest(path: Path) -> dict[str, str]:
    """What the installation before has written; empty where there was none.

    Raises:
        InstallError: It is there and cannot be understood: then nothing that we find may be
            taken for ours.
    """
    text = read_texts([path]).get(path)
    if text is None:
        return {}
    try:
        files = json.loads(text)["files"]
        return {str(name): str(digest) for name, digest in files.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InstallError(f"{path} is not what we wrote: move it away") from error


def carry_out(steps: Iterable[FileChange], manifest_path: Path) -> None:
    """Write what the steps say, and remember it.

    Raises:
        InstallError: A file cannot be written; those before it are, and are remembered.
    """
    done: list[FileChange] = []
    before = read_manifest(manifest_path)
    try:
        for step in steps:
            if step.action.writes:
                _write(step.path, step.text)
            done.append(step)
    finally:
        ours = manifest(done, before)
        if ours != before:
            text = json.dumps({"files": dict(sorted(ours.items()))}, indent=1)
            _write(manifest_path, f"{text}\n")


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text.encode("utf-8", errors="surrogateescape"))
    except OSError as error:
        raise InstallError(f"cannot write {path}: {error.strerror or error}") from error
