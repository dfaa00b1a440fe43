"""The engines of a node that somebody else starts: where they are looked for."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from disagg_cluster.config.section import Section
from disagg_cluster.config.tls import EngineTls
from disagg_cluster.config.values import EngineRole, EngineUrl, GpuList, PathText


class ListedEngine(Section):
    """One engine that a person names, with as much as they care to say of it."""

    url: EngineUrl = Field(description="an address such as http://10.0.0.7:8100")
    name: Annotated[str, Field(pattern=r"^[a-z0-9-]{1,40}$")] | None = Field(
        default=None, description="a name of 1 to 40 characters out of a-z, 0-9 and -"
    )
    engine: Literal["vllm", "sglang", "trtllm", "dynamo"] = Field(
        default="vllm", description="one of vllm, sglang, trtllm, dynamo"
    )
    role: EngineRole | None = Field(
        default=None, description="one of prefill, decode, mixed, encode"
    )
    gpus: GpuList = Field(default=(), description="a list of GPU indices and UUIDs ([0, 1])")
    tls: EngineTls | None = None


class Attach(Section):
    """Where engines are looked for that this node did not launch."""

    endpoints: Annotated[tuple[ListedEngine, ...], Field(strict=False)] = Field(
        default=(), description="a list of engines"
    )
    processes: bool = Field(default=True, description="true or false")
    kubernetes: Literal["auto", "always", "never"] = Field(
        default="auto", description="one of auto, always, never"
    )
    dynamo_files: PathText | None = Field(
        default=None, description="the path of the folder that Dynamo's DYN_FILE_KV names"
    )
    tls: EngineTls = EngineTls()
