"""Which halves of a model can hand KV to each other."""

from __future__ import annotations

from typing import Any

import pytest

from disagg_cluster.config.problems import ConfigError
from disagg_cluster.nodefile import ELSEWHERE, from_mapping

NIXL, MOONCAKE = {"connector": "NixlConnector"}, {"connector": "MooncakeConnector"}
BOTH = {
    "connector": "MultiConnector",
    "extra_config": {
        "connectors": [{"kv_connector": "NixlConnector"}, {"kv_connector": "MooncakeConnector"}]
    },
}
OWN = {"connector": "OurOwnThing"}
PUSH = {"connector": "NixlPushConnector"}


def refused(*workers: tuple[str, str, dict[str, Any]], **top: Any) -> list[str]:
    """The paths of problems of a file with these workers: role, engine, KV transfer."""
    told = [
        {
            **{"name": f"w-{number}", "role": role, "engine": engine, "model": "m", "gpus": 1},
            **{"host": "10.0.0.1", "port": 8000 + number},
            "kv_transfer": {**kv, "side_channel_port": 9000 + number},
        }
        for number, (role, engine, kv) in enumerate(workers)
    ]
    try:
        from_mapping({"workers": told, **top}, "test", ELSEWHERE)
    except ConfigError as error:
        return [problem.path for problem in error.problems]
    return []


@pytest.mark.parametrize(
    ("prefill", "decode", "fits"),
    [
        (NIXL, NIXL, True),
        (NIXL, MOONCAKE, False),
        (NIXL, {"connector": "NixlPullConnector"}, True),
        (NIXL, PUSH, False),
        (MOONCAKE, {"connector": "MooncakeStoreConnector"}, False),
        (BOTH, NIXL, True),
        (MOONCAKE, BOTH, True),
        (BOTH, {"connector": "LMCacheConnectorV1"}, False),
        (OWN, NIXL, True),
    ],
)
def test_prefill_and_decode_need_a_common_connector(
    prefill: dict[str, Any], decode: dict[str, Any], fits: bool
) -> None:
    found = refused(("prefill", "vllm", prefill), ("decode", "vllm", decode))

    assert found == ([] if fits else ["workers[1].kv_transfer.connector"])


def test_one_compatible_peer_suffices_unless_a_router_needs_all_to_match() -> None:
    workers = [(role, "vllm", kv) for role in ("prefill", "decode") for kv in (NIXL, MOONCAKE)]

    assert refused(*workers) == []
    assert "workers[2].kv_transfer.connector" in refused(*workers, router={})


def test_engines_with_peers_elsewhere_are_not_checked_against_each_other() -> None:
    halves = (("prefill", "vllm", NIXL), ("decode", "vllm", MOONCAKE))

    assert refused(*halves, peers="elsewhere") == []


def test_a_pair_of_sglang_and_vllm_is_refused() -> None:
    halves = (("prefill", "sglang", {"connector": "nixl"}), ("decode", "vllm", NIXL))

    assert refused(*halves) == ["workers[1].engine"]
