"""Client for vllm-router's engine registry: list, add and remove engines at run time.

The router supports this only if started with `--enable-igw`, which the node file's `membership:
live` requires (docs/decisions/0021-moving-workers.md).
"""

from __future__ import annotations

from urllib.parse import quote

from disagg_cluster.switching.json_http import JsonAnswer, NoResponseError, call
from disagg_cluster.switching.members import ROLES_BY_NAME, Member
from disagg_exporter.errors import DisaggError
from disagg_exporter.model import Role

_SECONDS = 5.0


class RouterRefusedError(DisaggError):
    """A router rejected a request; the message has its answer."""


class RouterAdmin:
    """One router, by its root URL."""

    def __init__(self, url: str) -> None:
        self._workers = f"{url}/workers"

    def members(self) -> dict[str, Role]:
        """Its engines by URL.

        Raises:
            NoResponseError, RouterRefusedError: It does not list them.
        """
        answer = self._asked(call("GET", self._workers, timeout_seconds=_SECONDS))
        listed = answer.value.get("workers") if isinstance(answer.value, dict) else None
        if not isinstance(listed, list):
            raise RouterRefusedError(f"the router does not list its engines: {answer.text()}")
        found = {}
        for each in listed:
            if not isinstance(each, dict) or not isinstance(each.get("url"), str):
                raise RouterRefusedError(f"the router does not list its engines: {answer.text()}")
            found[each["url"]] = ROLES_BY_NAME.get(str(each.get("worker_type")), Role.UNKNOWN)
        return found

    def join(self, member: Member) -> None:
        """Let it send requests to an engine; raises as `members`."""
        body: dict[str, object] = {"url": member.url, "worker_type": member.role.value}
        if member.model_name:
            body["model_id"] = member.model_name
        if member.bootstrap_port is not None:
            body["bootstrap_port"] = member.bootstrap_port
        self._asked(call("POST", self._workers, body, timeout_seconds=_SECONDS))

    def leave(self, url: str) -> None:
        """Stop new requests to an engine; running ones continue. Raises as `members`."""
        answer = call("DELETE", f"{self._workers}/{quote(url, safe='')}", timeout_seconds=_SECONDS)
        if answer.status != 404:
            self._asked(answer)

    def _asked(self, answer: JsonAnswer) -> JsonAnswer:
        if not answer.ok:
            raise RouterRefusedError(f"the router refuses: {answer.text()}")
        return answer


__all__ = ["NoResponseError", "RouterAdmin", "RouterRefusedError"]
