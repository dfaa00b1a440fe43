"""What is wrong with how one worker moves its KV cache."""

from __future__ import annotations

from collections.abc import Iterator

from disagg_cluster.config import KvTransfer, Worker
from disagg_cluster.config.problems import Finding, YamlPath, nearest
from disagg_cluster.launch.sglang_command import transfer_backend
from disagg_cluster.nodefile.draft import Draft
from disagg_exporter.model import Role

VLLM_CONNECTORS = (
    *("NixlConnector", "NixlPullConnector", "NixlPushConnector", "MooncakeConnector"),
    *("MooncakeStoreConnector", "MoRIIOConnector", "P2pNcclConnector", "MultiConnector"),
    *("LMCacheConnectorV1", "LMCacheMPConnector", "FlexKVConnectorV1", "HF3FSKVConnector"),
    *("OffloadingConnector", "SimpleCPUOffloadConnector", "HiSparseConnector"),
    *("ExampleConnector", "ExampleHiddenStatesConnector", "DecodeBenchConnector"),
    *("SharedStorageConnector", "LMCacheConnector"),
)
"""The connectors that versions 0.10 to 0.33 of vLLM know by name."""

_WRONG_WAY = {Role.PREFILL: "kv_consumer", Role.DECODE: "kv_producer"}
_NOT_OF_SGLANG = ("role", "extra_config", "buffer_device")


def check_kv(draft: Draft, worker: Worker, at: YamlPath) -> Iterator[Finding]:
    """Everything wrong with the KV transfer of a real engine."""
    if not (draft.sure(*at, "role") and draft.sure(*at, "kv_transfer")):
        return
    wrong = _WRONG_WAY.get(worker.role)
    if worker.kv_transfer is None:
        if wrong:
            message = f"a {worker.role} worker without kv_transfer: nobody would move its KV cache"
            hint = "add kv_transfer: {connector: NixlConnector}, or make the role mixed"
            yield Finding(at, message, hint)
    elif worker.engine == "sglang":
        yield from _sglang(worker, worker.kv_transfer, (*at, "kv_transfer"))
    elif meant := _meant(worker.kv_transfer.connector):
        message = f"vllm has no connector {worker.kv_transfer.connector!r}"
        yield Finding((*at, "kv_transfer", "connector"), message, f"did you mean {meant!r}?")
    elif worker.kv_transfer.role is not None and worker.kv_transfer.role == wrong:
        right = "kv_producer" if worker.role is Role.PREFILL else "kv_consumer"
        message = f"{wrong} is the wrong way round for a {worker.role} worker"
        yield Finding((*at, "kv_transfer", "role"), message, f"use {right}, or leave it out")


def _meant(connector: str) -> str | None:
    """The connector of vLLM that somebody means who misspells it.

    None for one of vLLM's, and for a name near to none: plugins bring connectors of their own.
    """
    if connector in VLLM_CONNECTORS:
        return None
    known = {name.lower(): name for name in VLLM_CONNECTORS}
    word = connector.lower().replace("_", "").replace("-", "")
    begun = [name for lower, name in known.items() if len(word) > 3 and lower.startswith(word)]
    near = nearest(word, known)
    return begun[0] if begun else known[near] if near else None


def _sglang(worker: Worker, kv: KvTransfer, at: YamlPath) -> Iterator[Finding]:
    if worker.role not in _WRONG_WAY:
        hint = "leave it out, or make the role prefill or decode"
        yield Finding(at, f"means nothing to a {worker.role} worker of sglang", hint)
        return
    if transfer_backend(kv.connector) is None:
        message = f"sglang has no connector {kv.connector!r}"
        hint = "it has nixl (NixlConnector), mooncake (MooncakeConnector), mooncake_tcp, mori, "
        yield Finding((*at, "connector"), message, f"{hint}ascend")
    for key in _NOT_OF_SGLANG:
        if key in kv.model_fields_set:
            hint = "the worker's role says which way; all else is said with args"
            yield Finding((*at, key), "means nothing to sglang", hint)
