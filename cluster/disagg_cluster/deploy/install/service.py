"""The service on a system with systemd: restarted after an upgrade, stopped before a removal."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from disagg_cluster.config import NodeConfig
from disagg_exporter.errors import DisaggError

_UNIT = "disagg-node.service"
_BOOTED = Path("/run/systemd/system")
"""Exists on a system booted by systemd, sd_booted(3)."""


class ServiceError(DisaggError):
    """systemctl failed; the text has its output."""


@dataclass(frozen=True, slots=True)
class SystemdService:
    """The service by its `systemctl`; None where systemd does not run, as in a container.

    `say` receives each command before it runs; a command may take as long as the unit's deadlines.
    """

    systemctl: str | None
    say: Callable[[str], None] = lambda _: None

    @classmethod
    def of_this_system(cls, say: Callable[[str], None]) -> SystemdService:
        """Return the service of this system."""
        return cls(shutil.which("systemctl") if _BOOTED.is_dir() else None, say)

    def reload(self, *, restart: bool) -> tuple[str, ...]:
        """Reload the unit, and restart a running daemon on it; return what was done.

        Raises:
            ServiceError: It failed.
        """
        words = [("daemon-reload",), *([("try-restart", _UNIT)] if restart else [])]
        return self._carry_out(words)

    def end(self) -> tuple[str, ...]:
        """Stop the daemon and disable its start at boot; return what was done.

        Raises:
            ServiceError: It failed.
        """
        return self._carry_out([("disable", "--now", _UNIT)])

    def forget(self) -> tuple[str, ...]:
        """Tell systemd that the unit is gone; return what was done.

        Raises:
            ServiceError: It failed.
        """
        return self._carry_out([("daemon-reload",)])

    def _carry_out(self, commands: Sequence[Sequence[str]]) -> tuple[str, ...]:
        if self.systemctl is None:
            return ()
        for words in commands:
            command = " ".join(words)
            self.say(f"systemctl {command}")
            try:
                done = subprocess.run(
                    [self.systemctl, *words], capture_output=True, text=True, check=False
                )
            except OSError as error:
                raise ServiceError(f"systemctl {command}: {error.strerror}") from error
            if done.returncode:
                said = done.stderr.strip() or f"ended with {done.returncode}"
                raise ServiceError(f"systemctl {command}: {said}")
        return tuple(f"systemctl {' '.join(words)}" for words in commands)


def spares_engines(config: NodeConfig) -> bool:
    """Return whether a daemon with this configuration ends no engine when it is restarted."""
    return config.on_sigterm == "leave" or (not config.workers and config.router is None)
