"""vllm-router is called through its own API, and its refusals become errors."""

import pytest

from disagg_cluster.switching.json_http import NoResponseError
from disagg_cluster.switching.members import Member
from disagg_cluster.switching.router_admin import RouterAdmin, RouterRefusedError
from disagg_exporter.model import Role
from support.children import free_port
from support.router_standin import router_standin

A = Member("http://127.0.0.1:1", Role.PREFILL, "m", 8998)
B = Member("http://127.0.0.1:2", Role.DECODE, "")


def test_engines_join_are_listed_and_leave() -> None:
    with router_standin() as router:
        admin = RouterAdmin(router.url)
        assert admin.members() == {}
        admin.join(A)
        admin.join(B)
        assert admin.members() == {A.url: Role.PREFILL, B.url: Role.DECODE}
        admin.leave(A.url)
        admin.leave(A.url)

        assert admin.members() == {B.url: Role.DECODE}
        joined = {"url": A.url, "worker_type": "prefill", "model_id": "m", "bootstrap_port": 8998}
        assert router.joined == [joined, {"url": B.url, "worker_type": "decode"}]


def test_joining_a_router_without_live_membership_raises_its_error() -> None:
    """As a vllm-router that was started without live membership answers."""
    with router_standin(takes=False) as router, pytest.raises(RouterRefusedError, match="HTTP 400"):
        RouterAdmin(router.url).join(A)


@pytest.mark.parametrize("garbage", [b"", b"[]", b'{"workers": 1}', b'{"workers": [{}]}', b"{"])
def test_an_invalid_list_of_engines_is_an_error(garbage: bytes) -> None:
    with router_standin(garbage=garbage) as router, pytest.raises(RouterRefusedError):
        RouterAdmin(router.url).members()


def test_an_unreachable_router_is_an_error() -> None:
    with pytest.raises(NoResponseError, match="refused"):
        RouterAdmin(f"http://127.0.0.1:{free_port()}").members()
