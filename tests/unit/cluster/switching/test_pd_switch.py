"""An engine's capability is what it reports; its answer to a switch is only a claim."""

import pytest

from disagg_cluster.switching.pd_switch import DRIVERS, RoleCapability, SglangSwitch, VllmRole
from disagg_exporter.model import Role
from support.children import free_port
from support.sglang_standin import SglangStandin, sglang_standin

SGLANG, VLLM = SglangSwitch(), VllmRole()


def test_sglang_with_role_switching_reports_the_capability_and_its_live_role() -> None:
    with sglang_standin(SglangStandin("decode")) as engine:
        assert SGLANG.capability(engine.url, "") == RoleCapability(Role.DECODE, in_place=True)


def test_sglang_without_the_argument_cannot_switch_in_place() -> None:
    with sglang_standin(SglangStandin(enabled=False)) as engine:
        told = SGLANG.capability(engine.url, "")

    assert (told.role, told.in_place) == (Role.PREFILL, False)
    assert told.why_not == "it was started without --enable-pd-role-switch"


@pytest.mark.parametrize("garbage", [b"", b"[]", b"null", b"{", b'{"internal_states": 7}'])
def test_an_invalid_response_gives_no_capability(garbage: bytes) -> None:
    with sglang_standin(SglangStandin(garbage=garbage)) as engine:
        assert not SGLANG.capability(engine.url, "").in_place
        assert not SGLANG.switch(engine.url, Role.DECODE, "").done


def test_an_unreachable_engine_has_no_capability() -> None:
    nowhere = f"http://127.0.0.1:{free_port()}"

    assert "Connection refused" in SGLANG.capability(nowhere, "").why_not
    assert not SGLANG.switch(nowhere, Role.DECODE, "").done
    assert not VLLM.capability(nowhere, "").in_place


def test_a_switch_sends_the_new_role_and_returns_the_answer_of_the_engine() -> None:
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


def test_a_successful_answer_does_not_prove_the_switch() -> None:
    """A false answer is detected by the role reported afterwards: see the tests of the move."""
    with sglang_standin(SglangStandin(lies=True)) as engine:
        assert SGLANG.switch(engine.url, Role.DECODE, "").done
        assert SGLANG.capability(engine.url, "").role is Role.PREFILL


def test_vllm_cannot_switch_in_place_and_gets_no_switch_request() -> None:
    with sglang_standin(SglangStandin()) as engine:
        told = VLLM.capability(engine.url, "")

        assert (told.role, told.in_place) == (None, False)
        assert not VLLM.switch(engine.url, Role.DECODE, "").done
        assert engine.asked == []


def test_other_engines_have_no_driver() -> None:
    assert set(DRIVERS) == {"sglang", "vllm"}
