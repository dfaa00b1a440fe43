"""The namespaces of a cluster, from outside: made, entered, ended.

Processes, network, mounts and files are in namespaces of one process and end with it, in any case;
this machine's own network is never touched. The doors are sockets of this machine's network, passed
to the process inside.
"""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from scripts.local_cluster.inside import READY
from scripts.local_cluster.plan import ClusterPlan, Machine, link_command, preparation

from disagg_cluster.host.processes.procfs import children_of
from disagg_exporter.errors import DisaggError

ROOT = Path(__file__).parents[2]
_PACKAGES = {"ip": "iproute2", "unshare": "util-linux", "nsenter": "util-linux"}
_NAMESPACES = ("--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child")
_OF_A_USER = ("--user", "--map-root-user")
_PROBED = ClusterPlan((Machine("probe", "10.0.0.1"),))
_PROBE_SECONDS = 20.0
_WAY_OUT = (
    "run it as root, or let users make network namespaces (sysctl "
    "kernel.unprivileged_userns_clone=1 and user.max_user_namespaces=1000, on Ubuntu "
    "kernel.apparmor_restrict_unprivileged_userns=0); a container needs --privileged"
)
_END_SECONDS = 40.0
_EARLY_SECONDS = 5.0


class NoNamespacesError(DisaggError):
    """This machine does not allow us to make networks; the text has the reason and a remedy."""


class PortTakenError(DisaggError):
    """A door's port on this machine is not available."""


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A running cluster, for access from outside.

    Attributes:
        plan: The plan, with the doors' actual ports.
        pid: The first process inside, by this machine's numbering.
        of_a_user: Whether it also has a user namespace.
        process: Ends when the cluster has ended.
    """

    plan: ClusterPlan
    pid: int
    of_a_user: bool
    process: subprocess.Popen[bytes]

    def url(self, door: str) -> str:
        """Return the URL on this machine of the service behind a door."""
        [port] = [each.port for each in self.plan.doors if each.name == door]
        return f"http://127.0.0.1:{port}"

    def within(self, *argv: str, machine: str = "") -> tuple[str, ...]:
        """Return the command that runs another one inside, at the switch or on a machine."""
        user = ("--user", "--preserve-credentials") if self.of_a_user else ()
        there = ("ip", "netns", "exec", machine) if machine else ()
        enter = ("nsenter", "--target", str(self.pid), *user, "--net", "--mount", "--pid", "--wd")
        return (*enter, *there, *argv)

    @contextmanager
    def cut_off(self, machine: str) -> Iterator[None]:
        """Cut a machine's link until the block ends."""
        self._link(machine, up=False)
        try:
            yield
        finally:
            self._link(machine, up=True)

    def _link(self, machine: str, *, up: bool) -> None:
        argv = self.within(*link_command(machine, up=up))
        subprocess.run(argv, check=True, timeout=_PROBE_SECONDS)


def missing_programs() -> str:
    """Return which programs are not installed, and their packages; empty if all are."""
    missing = [name for name in _PACKAGES if shutil.which(name) is None]
    if not missing:
        return ""
    packages = " ".join(sorted({_PACKAGES[name] for name in missing}))
    return f"{', '.join(missing)}: not installed; on Debian and Ubuntu: apt-get install {packages}"


@cache
def usable_flags() -> tuple[str, ...]:
    """Return the flags for `unshare` on this machine, found by trying once.

    Raises:
        NoNamespacesError: A program is missing, or neither root nor a user may make namespaces.
    """
    if text := missing_programs():
        raise NoNamespacesError(text)
    probe = ("sh", "-c", " && ".join(shlex.join(argv) for argv in preparation(_PROBED)))
    refusals = []
    for user in ((), _OF_A_USER) if os.geteuid() == 0 else (_OF_A_USER,):
        argv = ("unshare", *user, *_NAMESPACES, *probe)
        try:
            done = subprocess.run(
                argv, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            refusals.append(f"unshare did not end within {_PROBE_SECONDS:g} s")
            continue
        if done.returncode == 0:
            return (*user, *_NAMESPACES)
        refusals.append(_one_line(done.stderr) or f"unshare ended with {done.returncode}")
    why = "; ".join(dict.fromkeys(refusals))
    raise NoNamespacesError(f"no network namespaces can be made here ({why}): {_WAY_OUT}")


def _one_line(text: str) -> str:
    return "; ".join(text.split("\n")).strip("; ")


@contextmanager
def running(plan: ClusterPlan) -> Iterator[Sandbox]:
    """Run a cluster until the block ends; nothing of it is left afterwards.

    Raises:
        NoNamespacesError: It cannot be run on this machine.
        PortTakenError: One of the doors cannot be opened.
    """
    flags = usable_flags()
    with ExitStack() as stack:
        listeners = [stack.enter_context(_listener(door.port)) for door in plan.doors]
        ports = {
            door.name: int(each.getsockname()[1])
            for door, each in zip(plan.doors, listeners, strict=True)
        }
        plan = plan.with_ports(ports)
        descriptors = [each.fileno() for each in listeners]
        process = _started(flags, descriptors)
        stack.callback(_end, process)
        for each in listeners:
            each.close()
        assert process.stdin is not None
        assert process.stdout is not None
        # It may have ended already; then there is nothing to read, either.
        with suppress(BrokenPipeError):
            process.stdin.write(plan.to_json().encode() + b"\n")
            process.stdin.flush()
        output = process.stdout.readline().decode().strip()
        inside = children_of(process.pid)
        if output != READY or not inside:
            raise NoNamespacesError(f"{_early_end(process)}: {_WAY_OUT}")
        yield Sandbox(plan, inside[0], "--user" in flags, process)


def _listener(port: int) -> socket.socket:
    try:
        return socket.create_server(("127.0.0.1", port))
    except OSError as error:
        text = f"127.0.0.1:{port} cannot be had: {os.strerror(error.errno or 0)}"
        raise PortTakenError(text) from error


def _started(flags: Sequence[str], descriptors: Sequence[int]) -> subprocess.Popen[bytes]:
    inside = (sys.executable, "-m", "scripts.local_cluster.inside", *map(str, descriptors))
    return subprocess.Popen(
        ["unshare", *flags, *inside],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        pass_fds=descriptors,
        # Ctrl-C is for us alone: the processes inside end in order with their input.
        start_new_session=True,
    )


def _early_end(process: subprocess.Popen[bytes]) -> str:
    """Return how the first process ended; it has already reported its reason, if any."""
    try:
        code = process.wait(_EARLY_SECONDS)
    except subprocess.TimeoutExpired:
        return "the first process within the namespaces is not ready and does not end"
    return (
        f"the first process within the namespaces ended at once, with {code}, by the reason above"
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            # A process that ended early leaves unread input.
            with suppress(BrokenPipeError):
                pipe.close()
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
