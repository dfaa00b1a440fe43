"""What an engine is, as far as its costs depend on it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence

from disagg_cluster.continuity.learned_text import LearnedIdentity
from disagg_exporter.model import Device, EngineStatus


class EngineIdentities:
    """Tells engines apart by command, model and devices.

    Args:
        devices: All devices of the node, the pseudo-devices of found engines included.
        launched: The digest of the command that each of our own workers runs by.
        command_line: The arguments of a process; empty if it cannot be seen.
    """

    def __init__(
        self,
        devices: Callable[[], Iterable[Device]],
        launched: Mapping[str, Callable[[], str]],
        command_line: Callable[[int], Sequence[str]],
    ) -> None:
        self._devices = devices
        self._launched = launched
        self._command_line = command_line
        self._found: dict[str, tuple[int, str]] = {}

    def of(self, status: EngineStatus) -> LearnedIdentity | None:
        """Return what an engine is; None while its model, devices or process are not known."""
        names = {device.gpu: device.gpu_name for device in self._devices()}
        if not status.model_name or not status.devices or not names.keys() >= set(status.devices):
            return None
        launched = self._launched.get(status.engine)
        if launched is not None and status.pid is None:
            return None
        if launched is None and status.page is None:
            return None
        return LearnedIdentity(
            engine=status.engine,
            kind=status.kind,
            role=status.role.value if launched is not None else "",
            model_name=status.model_name,
            gpus=status.devices,
            gpu_names=tuple(names[gpu] for gpu in status.devices),
            build=launched() if launched is not None else self._build_of(status),
        )

    def _build_of(self, status: EngineStatus) -> str:
        if status.pid is None:
            return status.version
        pid, arguments = self._found.get(status.engine, (None, ""))
        if pid != status.pid:
            # A process is asked once: some change their title while they run.
            arguments = digest_of(self._command_line(status.pid))
            self._found[status.engine] = status.pid, arguments
        return f"{status.version} {arguments}"


def digest_of(words: Sequence[str]) -> str:
    """A fingerprint of some words: they may hold secrets."""
    return hashlib.sha256("\0".join(words).encode(errors="surrogateescape")).hexdigest()
