"""Which engines a router is to have, and what has to be changed for it.

Pure. What others have told the router is left alone: only engines that we know are taken out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from disagg_exporter.model import Role


@dataclass(frozen=True, slots=True)
class Member:
    """An engine as a router is told of it; a Mooncake prefill engine has a `bootstrap_port`."""

    url: str
    role: Role
    model_name: str
    bootstrap_port: int | None = None


@dataclass(frozen=True, slots=True)
class MemberChanges:
    """The engines to take out, by URL, and then those to put in."""

    leave: tuple[str, ...] = ()
    join: tuple[Member, ...] = ()


def changes_of(
    wanted: Collection[Member], ours: Collection[str], present: Mapping[str, Role]
) -> MemberChanges:
    """What makes a router's engines those that are wanted.

    Args:
        wanted: The engines that it should have.
        ours: The URLs of all engines that are ours to take out.
        present: The engines that it has, by URL.
    """
    by_url = {member.url: member for member in wanted}
    leave = [
        url
        for url, role in present.items()
        if url in ours and (url not in by_url or by_url[url].role is not role)
    ]
    join = [member for url, member in by_url.items() if present.get(url) is not member.role]
    return MemberChanges(tuple(leave), tuple(join))
