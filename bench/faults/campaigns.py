"""The campaigns: which faults are drawn, how often, and on what node."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass

from bench.faults.daemon_faults import DAEMON_FAULTS, FOLDER_FAULTS, JOURNAL_FAULTS
from bench.faults.fault import Fault
from bench.faults.host_faults import (
    CLIENT_FAULTS,
    DESCRIPTOR_FAULTS,
    DISK_FAULTS,
    MEMORY_FAULTS,
    OUTPUT_FAULTS,
    PIDS,
    THREAD_FAULTS,
)
from bench.faults.worker_faults import FAULTS as WORKER_FAULTS

COVERAGE = "every 11 s"
"""The campaign that is judged by GPU-seconds rather than by fault: `coverage`."""

COVERAGE_KILLS = 12


@dataclass(frozen=True, slots=True)
class Campaign:
    """Faults of one kind on one node.

    Args:
        name: Its name.
        faults: The faults to draw from.
        rounds: Number of draws; with `at_once`, one for every victim each.
        lacks: Returns what the campaign needs and this machine lacks; empty if nothing.
        small_disk: Whether the run folder is on a file system that can be filled.
        unread: Whether the daemon's output is left unread.
        victims: Number of workers that faults target.
    """

    name: str
    faults: tuple[Fault, ...]
    rounds: int
    at_once: bool = False
    lacks: Callable[[], str] = lambda: ""
    small_disk: bool = False
    unread: bool = False
    victims: int = 3


def needs_mounts() -> str:
    """Return what is missing for mounting a file system."""
    with tempfile.TemporaryDirectory() as folder:
        argv = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder]
        if not shutil.which("mount") or subprocess.run(argv, capture_output=True).returncode:
            return "the right to mount a tmpfs"
        subprocess.run(["umount", folder], check=True)
    return ""


def needs_pids() -> str:
    """Return what is missing for limiting the daemon's threads."""
    return "" if os.access(PIDS, os.W_OK) and (PIDS / "cgroup.procs").exists() else "a pids cgroup"


CAMPAIGNS = (
    Campaign("worker", WORKER_FAULTS, 85, at_once=True),
    Campaign("daemon", DAEMON_FAULTS, 70),
    Campaign("run folder", FOLDER_FAULTS, 32),
    Campaign("journal", JOURNAL_FAULTS, 40),
    Campaign("disk", DISK_FAULTS, 24, lacks=needs_mounts, small_disk=True),
    Campaign("descriptors", DESCRIPTOR_FAULTS, 30),
    Campaign("threads", THREAD_FAULTS, 18, lacks=needs_pids),
    Campaign("memory", MEMORY_FAULTS, 8),
    Campaign("output", OUTPUT_FAULTS, 12, unread=True),
    Campaign("clients", CLIENT_FAULTS, 15),
    Campaign(COVERAGE, (), COVERAGE_KILLS),
)
LONGEST_SHORT_SECONDS = 4.0
SHORT = "short"


def shortened(seed: str) -> Campaign:
    """Return a sample of each campaign that this machine can run, drawn by a seed, on one node.

    The campaign that measures GPU-seconds is left out: it takes too long.
    """
    chance = random.Random(seed)
    faults: list[Fault] = []
    lacking = {campaign.name for campaign in CAMPAIGNS if campaign.lacks()}
    for campaign in CAMPAIGNS:
        quick = [f for f in campaign.faults if _is_quick(f)]
        if quick and campaign.name not in lacking:
            faults.append(chance.choice(quick))
    small_disk = not any(c.small_disk for c in CAMPAIGNS if c.name in lacking)
    return Campaign(
        SHORT, tuple(faults), len(faults), victims=1, unread=True, small_disk=small_disk
    )


def _is_quick(fault: Fault) -> bool:
    # A hang is noticed only after several probes.
    hangs = fault.expected.state == "an engine that is not up"
    return fault.lasts_seconds <= LONGEST_SHORT_SECONDS and not hangs


BY_NAME = {campaign.name: campaign for campaign in CAMPAIGNS}


def named(name: str, seed: str) -> Campaign:
    """Return a campaign by name, or the sample of all of them that is a short run."""
    return shortened(seed) if name == SHORT else BY_NAME[name]
