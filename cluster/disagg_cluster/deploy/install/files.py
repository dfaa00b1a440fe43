"""The files of an installation on disk: read, written each in one go, remembered."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from disagg_cluster.deploy.install.plan import Step, manifest
from disagg_cluster.host.files.atomic_write import write_whole
from disagg_exporter.errors import DisaggError


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


def carry_out(steps: Iterable[Step], manifest_path: Path) -> None:
    """Write what the steps say, and remember it.

    Raises:
        InstallError: A file cannot be written; those before it are, and are remembered.
    """
    done: list[Step] = []
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
