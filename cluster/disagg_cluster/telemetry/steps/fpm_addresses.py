"""Where engines publish their ForwardPassMetrics, and which sockets listen there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from disagg_cluster.host.tcp_listeners import listening_inodes

DYNAMO_PORT_VARIABLE = "DYN_FORWARDPASS_METRIC_PORT"
DYNAMO_PORT = 20380
"""The first rank's port of a Dynamo vLLM worker whose variable is no number."""

_LOOPBACK = "127.0.0.1"
_MOST_RANKS = 1024
_ACCEPTS = 0x10000


def of_dynamo(environment: Mapping[str, str], ranks: int = 1) -> tuple[str, ...]:
    """Return the addresses of a Dynamo worker's ranks, from its environment.

    Empty if it publishes nothing: setting the variable enables publishing.
    """
    text = environment.get(DYNAMO_PORT_VARIABLE)
    if text is None or not 0 < ranks <= _MOST_RANKS:
        return ()
    base = int(text) if text.isascii() and text.isdecimal() and len(text) <= 5 else DYNAMO_PORT
    ports = range(base, base + ranks)
    return tuple(f"tcp://{_LOOPBACK}:{port}" for port in ports if 0 < port < 65536)


def of_sglang(server_info: Mapping[str, object], ranks: int = 1) -> tuple[str, ...]:
    """Return the addresses of an SGLang server's ranks, from its `/server_info`.

    Empty if it publishes nothing, or not on this host.
    """
    base = server_info.get("forward_pass_metrics_ipc_name")
    enabled = server_info.get("enable_forward_pass_metrics", True)
    if not isinstance(base, str) or not enabled or not base.startswith("ipc:///"):
        return ()
    if not base.isprintable() or len(base) > 100 or not 0 < ranks <= _MOST_RANKS:
        return ()
    return tuple(f"{base}.{rank}" for rank in range(ranks))


def listening_sockets(address: str) -> frozenset[int]:
    """Return the inodes of this network namespace's sockets that listen at an address.

    Raises:
        OSError: The kernel does not report them.
    """
    parts = urlsplit(address)
    if parts.scheme == "tcp":
        return listening_inodes(parts.hostname or _LOOPBACK, parts.port or 0)
    path, found = address.removeprefix("ipc://"), []
    for line in Path("/proc/net/unix").read_text(errors="replace").splitlines()[1:]:
        # address: references protocol flags type state inode path; the path may hold spaces
        fields = line.split(None, 7)
        if len(fields) == 8 and fields[7] == path and int(fields[3], 16) & _ACCEPTS:
            found.append(int(fields[6]))
    return frozenset(found)
