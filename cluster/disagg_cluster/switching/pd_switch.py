"""Role switches without a restart; an engine's capability is queried, never assumed.

SGLang switches in place (`POST /pd_role_switch`, sgl-project/sglang#28403) if it was started with
`--enable-pd-role-switch`. vLLM reports its role if it has `GET /v1/pd_role`
(vllm-project/vllm#56134), but is switched by a restart. Answers of either are reported, but are no
proof.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from disagg_cluster.switching.json_http import JsonAnswer, NoResponseError, call
from disagg_cluster.switching.members import ROLES_BY_NAME
from disagg_exporter.model import Role

_ASK_SECONDS = 5.0
_SWITCH_SECONDS = 180.0


@dataclass(frozen=True, slots=True)
class RoleCapability:
    """The capability an engine reports; `role` is None if it reports none.

    `in_place`: it can switch its role on request; `why_not` says why it cannot.
    """

    role: Role | None = None
    in_place: bool = False
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class SwitchResult:
    """An engine's answer to a switch request."""

    done: bool
    text: str


class RoleSwitchDriver(Protocol):
    """Queries and switches the role of engines of one kind."""

    def capability(self, url: str, api_key: str) -> RoleCapability:
        """The reported capability of the engine at `url`."""

    def switch(self, url: str, role: Role, api_key: str) -> SwitchResult:
        """Request another role; returns when it has answered."""


class SglangSwitch:
    """SGLang: queries `GET /server_info`, switches with `POST /pd_role_switch`."""

    def capability(self, url: str, api_key: str) -> RoleCapability:
        """Its reported capability; the scheduler has the live role, the server the initial one."""
        try:
            answer = call(
                "GET", f"{url}/server_info", timeout_seconds=_ASK_SECONDS, api_key=api_key
            )
        except NoResponseError as error:
            return RoleCapability(why_not=str(error))
        if not answer.ok or not isinstance(answer.value, dict):
            return RoleCapability(why_not=f"/server_info: {answer.text()}")
        info = answer.value
        states = info.get("internal_states")
        live = states[0] if isinstance(states, list) and states else {}
        reported = live.get("disaggregation_mode") if isinstance(live, dict) else None
        role = ROLES_BY_NAME.get(str(reported or info.get("disaggregation_mode")))
        if info.get("enable_pd_role_switch") is not True:
            return RoleCapability(role, why_not="it was started without --enable-pd-role-switch")
        if role is None:
            return RoleCapability(why_not="it is neither a prefill nor a decode engine")
        return RoleCapability(role, in_place=True)

    def switch(self, url: str, role: Role, api_key: str) -> SwitchResult:
        """Request the switch; refused while requests run, and the answer may ask for a restart."""
        try:
            answer = call(
                "POST",
                f"{url}/pd_role_switch",
                {"new_role": role.value},
                timeout_seconds=_SWITCH_SECONDS,
                api_key=api_key,
            )
        except NoResponseError as error:
            return SwitchResult(done=False, text=str(error))
        return SwitchResult(_is_done(answer, role), _message(answer))


class VllmRole:
    """vLLM: queries `GET /v1/pd_role` if it exists; never switches."""

    def capability(self, url: str, api_key: str) -> RoleCapability:
        """Its role if it reports one; never in place."""
        why_not = "vLLM is switched by a restart"
        try:
            answer = _get(f"{url}/v1/pd_role", api_key)
        except NoResponseError as error:
            return RoleCapability(why_not=str(error))
        reported = (
            answer.value.get("role") if answer.ok and isinstance(answer.value, dict) else None
        )
        return RoleCapability(ROLES_BY_NAME.get(str(reported)), why_not=why_not)

    def switch(self, url: str, role: Role, api_key: str) -> SwitchResult:
        """Reports that a switch is not supported."""
        return SwitchResult(done=False, text="vLLM is switched by a restart")


DRIVERS: dict[str, RoleSwitchDriver] = {"sglang": SglangSwitch(), "vllm": VllmRole()}
"""The drivers by engine kind; any other kind is switched by a restart."""


def _get(url: str, api_key: str) -> JsonAnswer:
    return call("GET", url, timeout_seconds=_ASK_SECONDS, api_key=api_key)


def _is_done(answer: JsonAnswer, role: Role) -> bool:
    value: Any = answer.value
    if not answer.ok or not isinstance(value, dict) or value.get("success") is not True:
        return False
    return bool(value.get("new_role", role.value) == role.value)


def _message(answer: JsonAnswer) -> str:
    value = answer.value
    if isinstance(value, dict) and isinstance(value.get("message"), str):
        return f"HTTP {answer.status}: {value['message'][:200]}"
    return answer.text()
