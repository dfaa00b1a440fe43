"""Copies the engine's side of us into a folder that an engine gets on its PYTHONPATH."""

from __future__ import annotations

import shutil
from pathlib import Path

from disagg_exporter.errors import DisaggError


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
        raise PluginCopyError(f"{error.filename or target}: {error.strerror}") from None
    return tuple(copied)
