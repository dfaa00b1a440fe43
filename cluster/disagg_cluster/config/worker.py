"""One engine of a node file, and its resource limits."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, ConfigDict, Field, JsonValue

from disagg_cluster.config.restart_policy import Deadlines, HealthProbes, Restart
from disagg_cluster.config.tls import EngineTls
from disagg_cluster.config.values import (
    AnyText,
    Count,
    EngineRole,
    Gpus,
    HostAddress,
    ModelText,
    Port,
    ProgramText,
    Section,
    Text,
    VariableName,
    reachable,
    root_url,
)
from disagg_exporter.model import Role
from disagg_exporter.roles.command_line.flags import CERTIFICATE_FILE, read_flags

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNITS |= {f"{unit}i": 1024**power for power, unit in enumerate("KMGT", start=1)}
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,3})?) ?(|[KMGT]i?)B?")


def _bytes(value: object) -> object:
    """Return a size as people write it (80GiB, 1.5T) as a number of bytes."""
    if not isinstance(value, str):
        return value
    fits = _SIZE.fullmatch(value.strip())
    if fits is None:
        raise ValueError("no size")
    return int(float(fits[1]) * _UNITS[fits[2]])


SizeBytes = Annotated[int, Field(ge=1 << 20, lt=2**62), BeforeValidator(_bytes)]


class WorkerLimits(Section):
    """Limits on memory and tasks, and how early the worker is ended when memory runs out.

    Memory and tasks need a control group that is delegated to the daemon; without one the worker
    runs without these limits, and the log says so.
    """

    model_config = ConfigDict(title="Limits")

    memory: SizeBytes | None = Field(
        default=None, description="a size such as 80GiB, at least 1 MiB", examples=["80GiB"]
    )
    tasks: Count | None = Field(
        default=None, description="a number of processes and threads, 1 or more"
    )
    oom_score_adjust: Annotated[int, Field(ge=-1000, le=1000)] | None = Field(
        default=None, description="a number from -1000 (ended last) to 1000 (ended first)"
    )


NIXL_DEFAULT_PORT = 5600
"""The port on which NIXL listens for its peers by default."""

BOOTSTRAP_DEFAULT_PORT = 8998
"""The port on which a prefill engine of SGLang, or vLLM with Mooncake, listens for its peers."""


class KvTransfer(Section):
    """How a worker's KV cache is transferred from prefill to decode, in the engine's terms."""

    connector: Text = Field(description="the engine's name for a connector, such as NixlConnector")
    role: Literal["kv_producer", "kv_consumer", "kv_both"] | None = Field(
        default=None, description="one of kv_producer, kv_consumer, kv_both"
    )
    side_channel_port: Port | None = Field(
        default=None, description="a port number from 1 to 65535"
    )
    extra_config: Mapping[str, JsonValue] = Field(
        default={}, description="a mapping of the connector's own settings"
    )
    buffer_device: Text | None = Field(default=None, description="a device such as cpu or cuda")

    def speaks(self, name: str) -> bool:
        """Whether the connector, or one that it wraps, is of this kind (`nixl`, `mooncake`)."""
        # A connector that wraps others names them in its extra configuration.
        return name in f"{self.connector} {self.extra_config}".lower()


Arguments = Annotated[tuple[AnyText, ...], Field(strict=False)]


class RoleArgs(Section):
    """Arguments that an engine gets after its `args` while it serves in a role."""

    model_config = ConfigDict(title="RoleArgs")

    prefill: Arguments = Field(
        default=(), description='a list of arguments, such as ["--max-num-batched-tokens", "8192"]'
    )
    decode: Arguments = Field(
        default=(), description='a list of arguments, such as ["--max-num-seqs", "256"]'
    )

    def of(self, role: Role) -> tuple[str, ...]:
        """Return the arguments of a role; empty for a role without its own."""
        return {Role.PREFILL: self.prefill, Role.DECODE: self.decode}.get(role, ())


class Worker(Section):
    """One engine that this node launches."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9-]{1,40}$")] = Field(
        description="a name of 1 to 40 characters from a-z, 0-9 and -"
    )
    engine: Literal["vllm", "sglang", "standin"] = Field(
        default="vllm", description="one of vllm, sglang, standin"
    )
    role: EngineRole = Field(description="one of prefill, decode, mixed, encode")
    gpus: Gpus = Field(
        default=0, description="a count (2) or a list of GPU indices and UUIDs ([0, 1])"
    )
    model: ModelText = Field(description="the path of a model's folder, or its name on the hub")
    served_model_name: Text | None = Field(default=None, description="a name for the model, text")
    python: ProgramText = Field(
        default_factory=lambda: sys.executable, description="the path of a Python interpreter"
    )
    host: HostAddress = Field(
        default="127.0.0.1", description="an IP address of this node, such as 127.0.0.1"
    )
    port: Port = Field(description="a port number from 1 to 65535")
    tensor_parallel_size: Count | None = Field(
        default=None, description="a number of GPUs, 1 or more"
    )
    args: Arguments = Field(
        default=(), description='a list of arguments, such as ["--max-model-len", "8192"]'
    )
    role_args: RoleArgs = RoleArgs()
    env: Mapping[VariableName, AnyText] = Field(
        default={}, description="a mapping of variables to their values"
    )
    kv_transfer: KvTransfer | None = None
    tls: EngineTls = EngineTls()
    deadlines: Deadlines = Deadlines()
    health: HealthProbes | None = None
    restart: Restart | None = None
    limits: WorkerLimits = WorkerLimits()

    @property
    def arguments(self) -> tuple[str, ...]:
        """The engine's arguments in its role; the last of a repeated option counts."""
        return (*self.args, *self.role_args.of(self.role))

    @property
    def gpu_count(self) -> int:
        """How many GPUs the worker requests; 0 on a node without any."""
        return self.gpus if isinstance(self.gpus, int) else len(self.gpus)

    @property
    def tp_size(self) -> int:
        """The number of devices over which each layer of the model is spread."""
        return self.tensor_parallel_size or max(1, self.gpu_count)

    @property
    def model_name(self) -> str:
        """The model's name for the engine's users."""
        return self.served_model_name or self.model

    @property
    def probe_host(self) -> str:
        """The address at which the engine answers on this node."""
        return reachable(self.host)

    @property
    def url(self) -> str:
        """The root of its server, as seen from this node."""
        return root_url(self.host, self.port, tls=self.certificate_file is not None)

    @property
    def certificate_file(self) -> str | None:
        """The file of its server's certificate; None without TLS."""
        flags = read_flags(self.arguments)
        return (flags.value(CERTIFICATE_FILE) or "") if flags.given(CERTIFICATE_FILE) else None

    @property
    def uses_bootstrap(self) -> bool:
        """Whether peers ask the prefill engine for KV on one port: with SGLang, or Mooncake.

        NIXL listens on one port for each rank of the model, in every engine.
        """
        kv = self.kv_transfer
        if kv is None or self.engine == "standin":
            return False
        return self.engine == "sglang" or (kv.speaks("mooncake") and not kv.speaks("nixl"))

    @property
    def side_channel_ports(self) -> range:
        """The ports on which other engines ask this one for KV; none where it has none.

        A stand-in only pretends to move KV.
        """
        kv = self.kv_transfer
        if kv is None or self.engine == "standin":
            return range(0)
        if self.uses_bootstrap:
            asked = self.role is Role.PREFILL or (self.engine, self.role) == ("vllm", Role.MIXED)
            base = kv.side_channel_port or BOOTSTRAP_DEFAULT_PORT
            return range(base, base + asked)
        usual = NIXL_DEFAULT_PORT if kv.speaks("nixl") else 0
        base = kv.side_channel_port or usual
        return range(base, base + self.tp_size) if base else range(0)
