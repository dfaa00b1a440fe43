"""The bearer token that authenticates callers: read from a file, kept as a digest, reloaded."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

from disagg_cluster.config.problems import Finding, config_error
from disagg_cluster.host.files.named_paths import read_bounded
from disagg_exporter.collectors import CollectorHealth
from disagg_exporter.model import CollectorStatus

COLLECTOR = "control_token"
LEAST_CHARACTERS = 32
"""A shorter token could be guessed."""
_MOST_BYTES = 4096


class TokenFile:
    """A token in a file, alone on its only line.

    Args:
        path: The file.
        log: Logs when a new token takes effect and when the file cannot be used.

    Raises:
        ConfigError: The file cannot be used now.
    """

    def __init__(self, path: Path, log: logging.Logger) -> None:
        self._path = path
        self._log = log
        self._health = CollectorHealth(COLLECTOR, log, level=logging.ERROR)
        why, self._digest = _read(path)
        if why:
            raise config_error([Finding((), why)], str(path))
        self._health.succeed()

    @property
    def digest(self) -> bytes:
        """The `digest_of` the token in force."""
        return self._digest

    def reload(self) -> None:
        """Read the file again; while it cannot be used, the previous token stays in force."""
        with self._health.round() as problems:
            why, digest = _read(self._path)
            if why:
                problems[""] = f"{self._path}: {why}; the one before stays in force"
            elif digest != self._digest:
                self._digest = digest
                self._log.info("control: the token of %s is in force", self._path)

    def status(self) -> CollectorStatus:
        """The collector `control_token`; failed while the file cannot be used."""
        return self._health.status()


def digest_of(token: bytes) -> bytes:
    """The digest that is stored and compared; its length does not depend on the token."""
    return hashlib.sha256(token).digest()


def _read(path: Path) -> tuple[str, bytes]:
    """What is wrong with a token file, and the digest of its token if nothing is."""
    try:
        token = read_bounded(path, _MOST_BYTES).strip()
    except OSError as error:
        return f"cannot be read: {error.strerror or error}", b""
    if len(token) < LEAST_CHARACTERS or not all(33 <= byte <= 126 for byte in token):
        hint = "openssl rand -hex 32 makes one"
        return f"holds no token of {LEAST_CHARACTERS} printable characters or more: {hint}", b""
    return "", digest_of(token)
