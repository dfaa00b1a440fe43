"""The service on a system with systemd: taken up anew after an upgrade, ended before a removal."""

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
"""There on a system that systemd has booted, sd_booted(3)."""


class ServiceError(DisaggError):
    """The service did not do as it was told; the text has what systemctl said."""


@dataclass(frozen=True, slots=True)
class SystemdService:
    """The service by its `systemctl`; None where systemd does not run, as in a container.

    `say` is told each command before it is waited for, as long as the unit's own deadlines allow.
    """

    systemctl: str | None
    say: Callable[[str], None] = lambda _: None

    @classmethod
    def of_this_system(cls, say: Callable[[str], None]) -> SystemdService:
        """That of the system that we run on."""
        return cls(shutil.which("systemctl") if _BOOTED.is_dir() else None, say)

    def take_up(self, *, restart: bool) -> tuple[str, ...]:
        """Read the unit anew, and start a running daemon anew on it; return what was done.

        Raises:
            ServiceError: It failed.
        """
        words = [("daemon-reload",), *([("try-restart", _UNIT)] if restart else [])]
        return self._carry_out(words)

    def end(self) -> tuple[str, ...]:
        """Stop the daemon and start it at no boot; return what was done.

        Raises:
            ServiceError: It failed.
        """
        return self._carry_out([("disable", "--now", _UNIT)])

    def forget(self) -> tuple[str, ...]:
        """Let systemd know that the unit has gone; return what was done.

        Raises:
            ServiceError: It failed.
        """
        return self._carry_out([("daemon-reload",)])

    def _carry_out(self, commands: Sequence[Sequence[str]]) -> tuple[str, ...]:
        if self.systemctl is None:
            return ()
        for words in commands:
            told = " ".join(words)
            self.say(f"systemctl {told}")
            try:
                done = subprocess.run(
                    [self.systemctl, *words], capture_output=True, text=True, check=False
                )
            except OSError as error:
                raise ServiceError(f"systemctl {told}: {error.strerror}") from error
            if done.returncode:
                said = done.stderr.strip() or f"ended with {done.returncode}"
                raise ServiceError(f"systemctl {told}: {said}")
        return tuple(f"systemctl {' '.join(words)}" for words in commands)


def spares_engines(config: NodeConfig) -> bool:
    """Whether a daemon on this node file ends no engine when it is started anew."""
    return config.on_sigterm == "leave" or (not config.workers and config.router is None)
