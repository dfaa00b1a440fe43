"""Which part of an engine a command line starts, where one engine spans several nodes.

One part leads: it serves, has a metrics page and reports the steps. The others follow: they compute
and report nothing. The options distinguish them, according to the engines' sources: vLLM 0.32
(`entrypoints/cli/serve.py`, `config/parallel.py`), SGLang's multi-node guide, ai-dynamo 1.6.1
(`dynamo/vllm/headless.py`, `dynamo/sglang/publisher.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from disagg_exporter.roles.command_line.flags import Flags
from disagg_exporter.roles.command_line.programs import Program

WORKER_INDEX = "LWS_WORKER_INDEX"
"""The index of a pod in its group; LeaderWorkerSet sets it from a label of the same meaning."""
WORKER_INDEX_LABEL = "leaderworkerset.sigs.k8s.io/worker-index"
_HEADLESS = "DYN_VLLM_HEADLESS"
NAMES_OF_PARTS = frozenset({_HEADLESS})
"""Environment variables that may be kept to distinguish parts of engines."""

_VLLM = (Program.VLLM, Program.DYNAMO_VLLM)
# vLLM's defaults, which apply to a command line that names no address.
_HOST, _PORT, _DATA_PARALLEL_PORT = "127.0.0.1", 29501, 29550
_OWN_SERVERS = (
    *("data-parallel-hybrid-lb", "data-parallel-external-lb"),
    *("data-parallel-rank", "data-parallel-start-rank"),
)
# An address is displayed, so it must look like one.
_HOST_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252}[A-Za-z0-9])?|\[?[0-9A-Fa-f:]{2,45}\]?")


@dataclass(frozen=True, slots=True)
class EnginePart:
    """One part of an engine that spans nodes.

    `head` is the rendezvous address of all parts, as each of them was configured; empty if unknown.
    `rank` is the number of this part, or of its first data-parallel rank; None if unknown.
    `follows` is whether another part leads. `local_ranks` is how many data-parallel ranks are on
    the leader's own node, the first ones; None where all that it reports are. `model_name` is the
    name under which it serves, if its options say so: a follower has no page that does.
    """

    head: str
    rank: int | None
    follows: bool
    local_ranks: int | None = None
    model_name: str = ""

    def leads(self, other: EnginePart) -> bool:
        """Return whether this part leads another one, where both are on one node."""
        return not self.follows and other.follows and self.head == other.head != ""


def part_of(
    program: Program, arguments: Sequence[str], flags: Flags, env: Mapping[str, str]
) -> EnginePart | None:
    """Return which part of a spanning engine a command starts; None if it spans no nodes.

    Args:
        program: The engine.
        arguments: Its own, unparsed; a model may be one without an option.
        flags: All its options.
        env: Its environment.
    """
    part = None
    if program in _VLLM:
        part = _vllm(flags, env if program is Program.DYNAMO_VLLM else {})
    elif program.is_sglang:
        part = _sglang(flags)
    return part and replace(part, model_name=_model(arguments, flags))


def _model(arguments: Sequence[str], flags: Flags) -> str:
    """Return the model's name on the leader's page; vLLM also accepts it after the word `serve`."""
    bare = arguments[1:2] if arguments[:1] == ["serve"] else ()
    name = flags.value("served-model-name", "model", "model-path") or next(iter(bare), "")
    # An unresolved variable is not a name.
    return "" if name.startswith("-") or "$" in name else name


def _vllm(flags: Flags, env: Mapping[str, str]) -> EnginePart | None:
    headless = flags.has("headless") or flags.value("api-server-count", "asc") == "0"
    if not headless and not flags.given("no-headless"):
        headless = env.get(_HEADLESS, "").strip().lower() in ("1", "true", "yes", "on")
    nodes = _count(flags, "nnodes", "n") or 1
    if headless:
        first = () if nodes > 1 else ("data-parallel-start-rank", "dpr")
        rank = _count(flags, *first, "node-rank", "r")
        return EnginePart(_vllm_head(flags, spanned=nodes > 1), rank, follows=True)
    # With one of these, each node has its own server, which reports only its own ranks.
    if any(flags.given(name) for name in (*_OWN_SERVERS, "dph", "dpe", "dpn", "dpr")):
        return None
    ranks = _count(flags, "data-parallel-size", "dp") or 1
    local = _count(flags, "data-parallel-size-local", "dpl")
    if local is None and nodes > 1:
        local = max(ranks // nodes, 1)
    elsewhere = local is not None and local < ranks
    if nodes == 1 and not elsewhere:
        return None
    head = _vllm_head(flags, spanned=nodes > 1)
    return EnginePart(head, 0, follows=False, local_ranks=local if elsewhere else None)


def _vllm_head(flags: Flags, *, spanned: bool) -> str:
    """Return the rendezvous address: of a model over nodes, or of data-parallel ranks on nodes."""
    host = flags.value("master-addr")
    if spanned:
        return _host_port(host or _HOST, _count(flags, "master-port") or _PORT)
    address = flags.value("data-parallel-address", "dpa")
    port = _count(flags, "data-parallel-rpc-port", "dpp") or _DATA_PARALLEL_PORT
    return _host_port(address or host or _HOST, port)


def _sglang(flags: Flags) -> EnginePart | None:
    rank = _count(flags, "node-rank")
    known = rank is not None or not flags.given("node-rank")
    if not known or (not rank and flags.value("nnodes") in (None, "1")):
        return None
    head = flags.value("dist-init-addr", "nccl-init-addr") or ""
    return EnginePart(head if is_host_port(head) else "", rank or 0, follows=bool(rank))


def is_host_port(text: str) -> bool:
    """Return whether a text is a host and a port, and so may be shown."""
    host, _, port = text.rpartition(":")
    known = port.isascii() and port.isdecimal() and len(port) <= 5
    return known and _HOST_NAME.fullmatch(host) is not None


def _host_port(host: str, port: int) -> str:
    return f"{host}:{port}" if _HOST_NAME.fullmatch(host) else ""


def _count(flags: Flags, *names: str) -> int | None:
    text = flags.value(*names) or ""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 5 else None
