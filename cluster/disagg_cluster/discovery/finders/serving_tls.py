"""Whether a command line has an engine serve TLS, and with which certificate; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from disagg_exporter.roles.command_line.flags import CERTIFICATE_FILE
from disagg_exporter.roles.evidence.command_line import parse_command_line

UNKNOWN_FILE = ""
"""Stands for a certificate of which only is known that it is there."""

# Dynamo's workers have a server of their own beside the engine's options, which speaks no TLS.
_WITH_SERVER = ("vllm", "sglang")


def certificate_file(argv: Sequence[str], env: Mapping[str, str], kind: str) -> str | None:
    """From which file an engine has the certificate that it shows; None if it serves no TLS.

    `UNKNOWN_FILE` where a variable that nobody resolved stands for it.

    Args:
        argv: Its command line, a shell's script included.
        env: The variables that may stand in it.
        kind: Which engine it is.
    """
    if kind not in _WITH_SERVER:
        return None
    told = parse_command_line(argv, env).option(CERTIFICATE_FILE)
    if told is None:
        return None
    return UNKNOWN_FILE if not told or "$" in told or "\0" in told else told
