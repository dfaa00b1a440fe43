"""Computes the changes that give a router its desired engines.

Pure. Engines that others have registered are left alone: only known ones are removed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from disagg_exporter.model import Role

ROLES_BY_NAME = {"prefill": Role.PREFILL, "decode": Role.DECODE}
"""As routers and engines name them."""


@dataclass(frozen=True, slots=True)
class Member:
    """An engine as registered with a router; a Mooncake prefill engine has a `bootstrap_port`."""

    url: str
    role: Role
    model_name: str
    bootstrap_port: int | None = None


@dataclass(frozen=True, slots=True)
class MemberChanges:
    """The URLs of engines to remove first, and then the engines to add."""

    leave: tuple[str, ...] = ()
    join: tuple[Member, ...] = ()


def membership_changes(
    desired: Collection[Member], ours: Collection[str], present: Mapping[str, Role]
) -> MemberChanges:
    """The changes from a router's current engines to the desired ones.

    Args:
        desired: The desired engines.
        ours: The URLs of all engines that we may remove.
        present: The current engines by URL.
    """
    by_url = {member.url: member for member in desired}
    leave = [
        url
        for url, role in present.items()
        if url in ours and (url not in by_url or by_url[url].role is not role)
    ]
    join = [member for url, member in by_url.items() if present.get(url) is not member.role]
    return MemberChanges(tuple(leave), tuple(join))
