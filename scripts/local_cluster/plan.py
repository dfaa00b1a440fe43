"""A cluster on this machine as values: machines on one switch, their programs, doors to them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace

SWITCH = "switch"
"""The bridge that connects all machines; no machine has this name."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A network namespace with one link to the switch, which has the machine's name.

    Attributes:
        name: Up to 15 characters, as it names the link.
        address: IPv4, in the /24 of all others; x.x.x.254 is the switch's own.
    """

    name: str
    address: str


@dataclass(frozen=True, slots=True)
class Program:
    """A program that runs as long as the cluster.

    Attributes:
        name: Also that of its log.
        argv: Its command, searched on the PATH.
        machine: Where it runs; empty for the switch, which reaches all machines.
        environment: Variables in addition to ours.
    """

    name: str
    argv: tuple[str, ...]
    machine: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Door:
    """A port of 127.0.0.1 outside that leads to an address inside.

    Attributes:
        name: The service behind it.
        port: The port outside; 0 for a free one.
        address: The address inside, of a machine or of the switch.
        inside_port: The port inside.
        health: A path that answers when the service is up.
    """

    name: str
    port: int
    address: str
    inside_port: int
    health: str = "/"


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """A whole cluster.

    Attributes:
        machines: In the order in which they are made.
        programs: In the order in which they are started.
        doors: How this machine reaches it.
        files: Files to write before anything is started, by absolute path.
        logs: The folder of the programs' logs.
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
        """Return the plan with these ports of doors, by name."""
        doors = tuple(replace(door, port=ports[door.name]) for door in self.doors)
        return replace(self, doors=doors)

    def to_json(self) -> str:
        """Return the plan as one line."""
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
    """Return the commands that make its network, to run in new mount and network namespaces."""
    made = [
        # Names of network namespaces are below it; the machine's own is not changed.
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
            # So engines that look up their outgoing address get their own.
            (*there, "route", "add", "default", "via", plan.switch_address),
        ]
    return tuple(made)


def link_command(machine: str, *, up: bool) -> tuple[str, ...]:
    """Return the command that cuts a machine off at the switch, or reconnects it."""
    return ("ip", "link", "set", "dev", machine, "up" if up else "down")
