"""Engines that change their role without a restart: what they can is asked, never assumed.

SGLang switches in place (`POST /pd_role_switch`, sgl-project/sglang#28403) if it was started with
`--enable-pd-role-switch`. vLLM tells its role where `GET /v1/pd_role` is there
(vllm-project/vllm#56134); it is switched by a restart. Both are told in their own words: an answer
is no proof.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from disagg_cluster.switching.json_http import JsonAnswer, SilentServerError, call
from disagg_exporter.model import Role

_ASK_SECONDS = 5.0
_SWITCH_SECONDS = 180.0
_ROLES = {"prefill": Role.PREFILL, "decode": Role.DECODE}


@dataclass(frozen=True, slots=True)
class RoleCapability:
    """What an engine says of its role; `role` is None where it says none.

    `in_place`: it can be asked to take another; `why_not` says why it cannot.
    """

    role: Role | None = None
    in_place: bool = False
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class SwitchSaid:
    """What an engine answered when it was asked to switch."""

    done: bool
    text: str


class RoleSwitchDriver(Protocol):
    """How engines of one kind tell their role, and how they are asked for another."""

    def capability(self, url: str, api_key: str) -> RoleCapability:
        """What the engine at `url` says that it can."""

    def switch(self, url: str, role: Role, api_key: str) -> SwitchSaid:
        """Ask it for another role; returns when it has answered."""


class SglangSwitch:
    """SGLang: `GET /server_info` tells, `POST /pd_role_switch` asks."""

    def capability(self, url: str, api_key: str) -> RoleCapability:
        """What its server says; the scheduler knows the live role, the server that of its start."""
        try:
            answer = call(
                "GET", f"{url}/server_info", timeout_seconds=_ASK_SECONDS, api_key=api_key
            )
        except SilentServerError as error:
            return RoleCapability(why_not=str(error))
        if not answer.well or not isinstance(answer.value, dict):
            return RoleCapability(why_not=f"/server_info: {answer.said()}")
        info = answer.value
        states = info.get("internal_states")
        live = states[0] if isinstance(states, list) and states else {}
        told = live.get("disaggregation_mode") if isinstance(live, dict) else None
        role = _ROLES.get(str(told or info.get("disaggregation_mode")))
        if info.get("enable_pd_role_switch") is not True:
            return RoleCapability(role, why_not="it was started without --enable-pd-role-switch")
        if role is None:
            return RoleCapability(why_not="it is neither a prefill nor a decode engine")
        return RoleCapability(role, in_place=True)

    def switch(self, url: str, role: Role, api_key: str) -> SwitchSaid:
        """Ask it; it refuses while it has requests, and says when it needs a restart."""
        try:
            answer = call(
                "POST",
                f"{url}/pd_role_switch",
                {"new_role": role.value},
                timeout_seconds=_SWITCH_SECONDS,
                api_key=api_key,
            )
        except SilentServerError as error:
            return SwitchSaid(False, str(error))
        return SwitchSaid(_says_done(answer, role), _message(answer))


class VllmRole:
    """vLLM: `GET /v1/pd_role` tells where it is there; nothing is asked for."""

    def capability(self, url: str, api_key: str) -> RoleCapability:
        """Its role if it says one; never in place."""
        why_not = "vLLM is switched by a restart"
        try:
            answer = _get(f"{url}/v1/pd_role", api_key)
        except SilentServerError as error:
            return RoleCapability(why_not=str(error))
        told = answer.value.get("role") if answer.well and isinstance(answer.value, dict) else None
        return RoleCapability(_ROLES.get(str(told)), why_not=why_not)

    def switch(self, url: str, role: Role, api_key: str) -> SwitchSaid:
        """Say that it is not asked."""
        return SwitchSaid(False, "vLLM is switched by a restart")


DRIVERS: dict[str, RoleSwitchDriver] = {"sglang": SglangSwitch(), "vllm": VllmRole()}
"""The drivers by kind of engine; any other kind is switched by a restart."""


def _get(url: str, api_key: str) -> JsonAnswer:
    return call("GET", url, timeout_seconds=_ASK_SECONDS, api_key=api_key)


def _says_done(answer: JsonAnswer, role: Role) -> bool:
    value: Any = answer.value
    if not answer.well or not isinstance(value, dict) or value.get("success") is not True:
        return False
    return bool(value.get("new_role", role.value) == role.value)


def _message(answer: JsonAnswer) -> str:
    value = answer.value
    if isinstance(value, dict) and isinstance(value.get("message"), str):
        return f"HTTP {answer.status}: {value['message'][:200]}"
    return answer.said()
