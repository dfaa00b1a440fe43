"""Where no namespaces can be made, the reason and the way out are said."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripts.local_cluster.plan import ClusterPlan, Door, Machine
from scripts.local_cluster.sandbox import (
    NoNamespacesError,
    missing_programs,
    running,
    usable_flags,
)

REFUSING = "#!/bin/sh\necho 'unshare: unshare failed: Operation not permitted' >&2\nexit 1\n"
ONLY_FOR_USERS = '#!/bin/sh\ncase "$*" in *--user*) exit 0 ;; esac\nexit 1\n'
# The probe succeeds; the program that is run afterwards does not.
ENDING_AT_ONCE = '#!/bin/sh\ncase "$*" in *local_cluster.inside*) exit 3 ;; esac\nexit 0\n'
_ask = usable_flags.__wrapped__


def programs(folder: Path, unshare: str) -> str:
    """A PATH with these programs alone."""
    for name, text in {"ip": "#!/bin/sh\n", "nsenter": "#!/bin/sh\n", "unshare": unshare}.items():
        (folder / name).write_text(text, encoding="utf-8")
        (folder / name).chmod(0o755)
    return str(folder)


def test_a_missing_program_is_reported_with_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", programs(tmp_path, REFUSING))
    (tmp_path / "ip").unlink()

    assert missing_programs() == "ip: not installed; on Debian and Ubuntu: apt-get install iproute2"


def test_refused_namespaces_are_reported_with_the_reason_and_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", programs(tmp_path, REFUSING))

    with pytest.raises(NoNamespacesError, match=r"not permitted.*as root.*--privileged"):
        _ask()


def test_a_user_namespace_is_used_where_no_other_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container whose root may create no namespace without a user namespace."""
    monkeypatch.setenv("PATH", programs(tmp_path, ONLY_FOR_USERS))

    assert _ask()[:2] == ("--user", "--map-root-user")


def test_namespaces_that_end_at_once_are_reported_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the plan sent to them is a megabyte long."""
    monkeypatch.setenv("PATH", programs(tmp_path, ENDING_AT_ONCE))
    monkeypatch.setattr("scripts.local_cluster.sandbox.usable_flags", _ask)
    files = {"/run/large": "x" * 1_000_000}
    plan = ClusterPlan((Machine("a", "10.0.0.1"),), (), (Door("page", 0, "10.0.0.1", 80),), files)

    with pytest.raises(NoNamespacesError, match=r"ended at once, with 3.*as root.*--privileged"):
        running(plan).__enter__()
