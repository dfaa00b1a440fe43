"""Keeps dcgm-exporter's job mapping files up to date with the devices' roles.

dcgm-exporter, started with --hpc-job-mapping-dir, reads the file named after a GPU's number and
adds each of its lines to that GPU's series, one copy of them per line (internal/pkg/transformation/
hpc.go). So there is one line, the role: a second one would double every sum.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from disagg_cluster.host.files.atomic_write import write_for_all
from disagg_exporter.collectors import CollectorHealth
from disagg_exporter.model import CollectorStatus, Device, Role

_INSTANCE = re.compile(r"/gi(\d+)(/ci\d+)?$", re.ASCII)
_SILENT = (Role.NONE, Role.UNKNOWN)

TEXTS = frozenset(("", *(f"{role}\n" for role in Role)))
"""All texts that such a file of ours can have: distinguishes ours from a job scheduler's."""


def job_files(roles: Iterable[tuple[Device, Role]]) -> dict[str, str]:
    """Return the files' texts by their names; an empty text gives no label.

    MIG instances are named by GPU and GPU instance (`0.3`). Compute instances that share a GPU
    instance share its name: if their roles differ, it is `mixed`.
    """
    texts: dict[str, str] = {}
    for device, role in roles:
        if device.is_pseudo:
            continue
        instance = _INSTANCE.search(device.device)
        name = f"{device.index}.{instance[1]}" if instance else str(device.index)
        text = "" if role in _SILENT else f"{role}\n"
        before = texts.get(name, text)
        texts[name] = text if before in ("", text) else before if not text else f"{Role.MIXED}\n"
    return texts


COLLECTOR = "hpc_job"
AGAIN_SECONDS = 10.0

_LONGEST = max(map(len, TEXTS))


class JobFiles:
    """Writes the files of one folder when a role changes, and removes them in the end.

    An existing file that is not ours, such as a job scheduler's, stays as it is and is reported.
    Files of an earlier daemon are taken over.

    Args:
        folder: The folder that dcgm-exporter is given as --hpc-job-mapping-dir.
        clock, wall, log: Replaceable for tests; seconds.
    """

    def __init__(
        self,
        folder: Path,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        log: logging.Logger | None = None,
    ) -> None:
        self._folder = folder
        self._clock = clock
        self._health = CollectorHealth(
            COLLECTOR, log or logging.getLogger(__name__), recovered="", wall=wall
        )
        self._written: dict[str, str] = {}
        self._problems: dict[str, str] = {}
        self._again_at = 0.0

    def show(self, roles: Iterable[tuple[Device, Role]]) -> None:
        """Show the devices' current roles; to be called often, it writes only changes.

        What failed is tried again after `AGAIN_SECONDS`.
        """
        with self._health.round() as problems:
            self._show(job_files(roles))
            problems |= self._problems

    def _show(self, wanted: Mapping[str, str]) -> None:
        changed = {name for name, text in wanted.items() if self._written.get(name) != text}
        if self._clock() < self._again_at:
            changed -= self._problems.keys()
        for name in changed:
            self._put(name, wanted[name])
        for name in self._written.keys() - wanted.keys():
            self._remove(name)
        if self._problems and self._clock() >= self._again_at:
            self._again_at = self._clock() + AGAIN_SECONDS

    def close(self) -> None:
        """Remove our files, as they are not updated from now on."""
        for name in tuple(self._written):
            self._remove(name)

    def status(self) -> CollectorStatus:
        """Return the collector `hpc_job`."""
        return replace(self._health.status(), duration_seconds=0.0)

    def _put(self, name: str, text: str) -> None:
        path = self._folder / name
        try:
            if name not in self._written and not _is_ours(path):
                self._fail(name, f"{path} is somebody else's (a job scheduler's?) and stays so")
                return
            # dcgm-exporter ignores the unfinished file: its name is no number. It may run as
            # another user, and the service's umask keeps others out.
            write_for_all(path, text.encode("ascii"))
        except OSError as error:
            self._fail(name, f"{path}: {error.strerror}")
            return
        self._written[name] = text
        self._problems.pop(name, None)

    def _remove(self, name: str) -> None:
        del self._written[name]
        with contextlib.suppress(OSError):
            if _is_ours(self._folder / name):
                (self._folder / name).unlink()

    def _fail(self, name: str, problem: str) -> None:
        self._problems[name] = problem


def _is_ours(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return True
    try:
        return os.read(descriptor, _LONGEST + 1).decode("ascii", "replace") in TEXTS
    finally:
        os.close(descriptor)
