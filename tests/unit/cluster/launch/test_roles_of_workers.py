"""A worker in another role is the same worker; what cannot work there is known before it starts."""

from __future__ import annotations

from typing import Any

import pytest

from disagg_cluster.config import NodeConfig
from disagg_cluster.launch.command import vllm_argv
from disagg_cluster.launch.role_fit import misfits
from disagg_cluster.launch.router_command import router_command
from disagg_cluster.launch.worker_specs import in_role
from disagg_cluster.nodefile import from_mapping
from disagg_exporter.model import Role

NIXL = {"connector": "NixlConnector"}


def node(*workers: dict[str, Any], **settings: Any) -> NodeConfig:
    usual = {"engine": "vllm", "model": "m", "kv_transfer": NIXL, "gpus": 1}
    listed = [
        {"port": 8000 + 10 * n, **usual, **worker} for n, worker in enumerate(workers, start=1)
    ]
    return from_mapping({"devices": "sim", "workers": listed, **settings}, "test")


def pair(**second: Any) -> NodeConfig:
    prefill = {"name": "p0", "role": "prefill", "kv_transfer": NIXL | {"side_channel_port": 5600}}
    decode = {"name": "d0", "role": "decode", "kv_transfer": NIXL | {"side_channel_port": 5700}}
    return node(prefill, decode | second)


@pytest.mark.parametrize(
    ("named", "turned"), [(None, "kv_producer"), ("kv_consumer", "kv_producer")]
)
def test_the_kv_role_changes_with_the_role(named: str | None, turned: str) -> None:
    worker = pair(kv_transfer=NIXL | {"role": named, "side_channel_port": 5700}).workers[1]

    moved = in_role(worker, Role.PREFILL)

    assert f'"kv_role":"{turned}"' in vllm_argv(moved)[-1]
    assert in_role(moved, Role.DECODE).role is Role.DECODE
    assert moved.model_copy(update={"role": worker.role, "kv_transfer": worker.kv_transfer}) == (
        worker
    )


def test_kv_both_is_unchanged_by_a_role_change() -> None:
    worker = pair(kv_transfer=NIXL | {"role": "kv_both", "side_channel_port": 5700}).workers[1]

    assert '"kv_role":"kv_both"' in vllm_argv(in_role(worker, Role.PREFILL))[-1]


def test_a_pair_of_equal_size_can_swap_roles() -> None:
    config = pair()

    assert misfits(config, config.workers[0], Role.DECODE) == ()
    assert misfits(config, config.workers[1], Role.PREFILL) == ()


def test_tensor_parallel_sizes_have_to_divide_each_other() -> None:
    wide = {"name": "d1", "role": "decode", "gpus": 3}
    config = node(
        {"name": "p0", "role": "prefill", "gpus": 1},
        {"name": "d0", "role": "decode", "gpus": 2, "kv_transfer": NIXL | {"side_channel_port": 1}},
        wide | {"kv_transfer": NIXL | {"side_channel_port": 9}},
    )

    assert misfits(config, config.workers[1], Role.PREFILL) == (
        "its tensor parallel size 2 does not fit 3 of d1: one has to divide the other",
    )


def test_a_conflict_of_kv_transfer_ports_is_reported() -> None:
    mooncake = {"connector": "MooncakeConnector"}
    config = node(
        {"name": "p0", "role": "prefill", "kv_transfer": mooncake},
        {"name": "d0", "role": "decode", "kv_transfer": mooncake},
    )

    assert misfits(config, config.workers[1], Role.PREFILL) == (
        "p0 has the port 8998 that its KV transfer would listen on",
    )


def test_a_router_with_live_membership_is_started_with_enable_igw() -> None:
    prefill = {"name": "p0", "role": "prefill", "engine": "standin"}
    decode = {"name": "d0", "role": "decode", "engine": "standin"}

    def command(**router: Any) -> tuple[str, ...]:
        config = node(prefill, decode, router=router)
        assert config.router is not None
        return router_command(config, config.router).argv

    assert "--enable-igw" not in command()
    live = command(membership="live")
    assert set(live) - set(command()) == {"--enable-igw"}
