"""What an engine can is what it says, and what it says it has done is only told."""

import pytest

from disagg_cluster.switching.pd_switch import DRIVERS, RoleCapability, SglangSwitch, VllmRole
from disagg_exporter.model import Role
from support.children import free_port
from support.sglang_standin import SglangStandin, sglang_standin

SGLANG, VLLM = SglangSwitch(), VllmRole()


def test_sglang_that_can_switch_says_so_and_tells_its_live_role() -> None:
    with sglang_standin(SglangStandin("decode")) as engine:
        assert SGLANG.capability(engine.url, "") == RoleCapability(Role.DECODE, in_place=True)


def test_sglang_without_its_argument_is_not_asked_to_switch() -> None:
    with sglang_standin(SglangStandin(enabled=False)) as engine:
        told = SGLANG.capability(engine.url, "")

    assert (told.role, told.in_place) == (Role.PREFILL, False)
    assert told.why_not == "it was started without --enable-pd-role-switch"


@pytest.mark.parametrize("garbage", [b"", b"[]", b"null", b"{", b'{"internal_states": 7}'])
def test_garbage_is_no_capability(garbage: bytes) -> None:
    with sglang_standin(SglangStandin(garbage=garbage)) as engine:
        assert not SGLANG.capability(engine.url, "").in_place
        assert not SGLANG.switch(engine.url, Role.DECODE, "").done


def test_an_engine_that_is_gone_can_nothing() -> None:
    nowhere = f"http://127.0.0.1:{free_port()}"

    assert "Connection refused" in SGLANG.capability(nowhere, "").why_not
    assert not SGLANG.switch(nowhere, Role.DECODE, "").done
    assert not VLLM.capability(nowhere, "").in_place


def test_a_switch_is_asked_for_by_its_role_and_answered_in_the_engines_words() -> None:
    with sglang_standin(SglangStandin(api_key="k")) as engine:
        assert "HTTP 401" in SGLANG.capability(engine.url, "").why_not
        done = SGLANG.switch(engine.url, Role.DECODE, "k")

        assert (done.done, done.text) == (True, "HTTP 200: ok")
        assert engine.asked == [{"new_role": "decode"}]
        again = SGLANG.switch(engine.url, Role.DECODE, "k")
        assert (again.done, again.text) == (True, "HTTP 200: already in target role")


def test_a_busy_engine_refuses() -> None:
    with sglang_standin(SglangStandin(idle=False)) as engine:
        said = SGLANG.switch(engine.url, Role.DECODE, "")

    assert (said.done, said.text) == (False, "HTTP 400: not idle: drain first")


def test_an_answer_is_no_proof() -> None:
    """The one who lies is found out by what it does: see the tests of the move."""
    with sglang_standin(SglangStandin(lies=True)) as engine:
        assert SGLANG.switch(engine.url, Role.DECODE, "").done
        assert SGLANG.capability(engine.url, "").role is Role.PREFILL


def test_vllm_is_read_and_never_asked() -> None:
    with sglang_standin(SglangStandin()) as engine:
        told = VLLM.capability(engine.url, "")

        assert (told.role, told.in_place) == (None, False)
        assert not VLLM.switch(engine.url, Role.DECODE, "").done
        assert engine.asked == []


def test_other_engines_have_no_driver() -> None:
    assert set(DRIVERS) == {"sglang", "vllm"}
