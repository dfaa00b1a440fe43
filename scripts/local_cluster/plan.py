"""A cluster on this machine as values: machines on one switch, what runs on them, doors to them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace

SWITCH = "switch"
"""The bridge that all machines hang on; no machine is called so."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A network namespace of its own with one link to the switch, named as the machine is.

    Attributes:
        name: Up to 15 characters, as its link is called so.
        address: IPv4, in the /24 of all others; x.x.x.254 is the switch's own.
    """

    name: str
    address: str


@dataclass(frozen=True, slots=True)
class Program:
    """What is started at the begin and ended at the end.

    Attributes:
        name: Of its log.
        argv: Searched on the PATH.
        machine: Where it runs; empty is at the switch, which reaches all machines.
        environment: What it has beside ours.
    """

    name: str
    argv: tuple[str, ...]
    machine: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Door:
    """A port of 127.0.0.1 outside that leads to an address inside.

    Attributes:
        name: What is behind it.
        port: Outside; 0 takes one that is free.
        address: Inside, of a machine or of the switch.
        inside_port: The port there.
        health: The path that is answered when it serves.
    """

    name: str
    port: int
    address: str
    inside_port: int
    health: str = "/"


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """All of a cluster.

    Attributes:
        machines: In the order in which they are made.
        programs: In the order in which they are started.
        doors: How this machine reaches it.
        files: What is written before anything is started, by absolute path.
        logs: Folder of the programs' logs.
    """

    machines: tuple[Machine, ...]
    programs: tuple[Program, ...] = ()
    doors: tuple[Door, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    logs: str = "/run/disagg-cluster"

    @property
    def switch_address(self) -> str:
        """The switch's own address."""
        return f"{self.machines[0].address.rpartition('.')[0]}.254"

    def with_ports(self, ports: Mapping[str, int]) -> ClusterPlan:
        """Return it with these ports of doors, by name."""
        doors = tuple(replace(door, port=ports[door.name]) for door in self.doors)
        return replace(self, doors=doors)

    def to_json(self) -> str:
        """Return it in one line."""
        return json.dumps(asdict(self))


def from_json(text: str) -> ClusterPlan:
    """Read what `ClusterPlan.to_json` wrote."""
    read = json.loads(text)
    return ClusterPlan(
        tuple(Machine(**each) for each in read["machines"]),
        tuple(Program(**{**each, "argv": tuple(each["argv"])}) for each in read["programs"]),
        tuple(Door(**each) for each in read["doors"]),
        read["files"],
        read["logs"],
    )


def preparation(plan: ClusterPlan) -> tuple[tuple[str, ...], ...]:
    """The commands that make its network, within namespaces of mounts and network of their own."""
    made = [
        # Names of network namespaces lie below it; the machine's own is left as it is.
        ("mount", "-t", "tmpfs", "tmpfs", "/run"),
        ("ip", "link", "set", "dev", "lo", "up"),
        ("ip", "link", "add", "name", SWITCH, "type", "bridge"),
        ("ip", "address", "add", f"{plan.switch_address}/24", "dev", SWITCH),
        ("ip", "link", "set", "dev", SWITCH, "up"),
    ]
    for machine in plan.machines:
        name, there = machine.name, ("ip", "-netns", machine.name)
        plug = ("ip", "link", "add", "name", name, "type", "veth", "peer", "name", "eth0")
        made += [
            ("ip", "netns", "add", name),
            (*plug, "netns", name),
            ("ip", "link", "set", "dev", name, "master", SWITCH),
            ("ip", "link", "set", "dev", name, "up"),
            (*there, "link", "set", "dev", "lo", "up"),
            (*there, "address", "add", f"{machine.address}/24", "dev", "eth0"),
            (*there, "link", "set", "dev", "eth0", "up"),
            # Engines that ask which address leads out of here get their own.
            (*there, "route", "add", "default", "via", plan.switch_address),
        ]
    return tuple(made)


def link_command(machine: str, *, up: bool) -> tuple[str, ...]:
    """What cuts a machine off at the switch, or heals that."""
    return ("ip", "link", "set", "dev", machine, "up" if up else "down")
