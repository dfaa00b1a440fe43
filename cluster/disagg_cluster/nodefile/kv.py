"""What is wrong with how one worker moves its KV cache."""

from __future__ import annotations

from collections.abc import Iterator

from disagg_cluster.config import KvTransfer, Worker
from disagg_cluster.nodefile.draft import Draft
from disagg_cluster.problems import Finding, YamlPath
from disagg_cluster.sglang_command import transfer_backend
from disagg_exporter.model import Role

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
    elif worker.kv_transfer.role is not None and worker.kv_transfer.role == wrong:
        right = "kv_producer" if worker.role is Role.PREFILL else "kv_consumer"
        message = f"{wrong} is the wrong way round for a {worker.role} worker"
        yield Finding((*at, "kv_transfer", "role"), message, f"use {right}, or leave it out")


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
