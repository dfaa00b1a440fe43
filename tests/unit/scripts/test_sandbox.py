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
# The probe is let through, what is run then is not.
ENDING_AT_ONCE = '#!/bin/sh\ncase "$*" in *local_cluster.inside*) exit 3 ;; esac\nexit 0\n'
_ask = usable_flags.__wrapped__


def programs(folder: Path, unshare: str) -> str:
    """A PATH with these programs alone."""
    for name, text in {"ip": "#!/bin/sh\n", "nsenter": "#!/bin/sh\n", "unshare": unshare}.items():
        (folder / name).write_text(text, encoding="utf-8")
        (folder / name).chmod(0o755)
    return str(folder)


def test_a_program_that_is_missing_is_named_with_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", programs(tmp_path, REFUSING))
    (tmp_path / "ip").unlink()

    assert missing_programs() == "ip: not installed; on Debian and Ubuntu: apt-get install iproute2"


def test_a_machine_that_allows_none_says_what_was_refused_and_what_changes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", programs(tmp_path, REFUSING))

    with pytest.raises(NoNamespacesError, match=r"not permitted.*as root.*--privileged"):
        _ask()


def test_where_only_users_may_make_them_a_user_namespace_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container whose root may not."""
    monkeypatch.setenv("PATH", programs(tmp_path, ONLY_FOR_USERS))

    assert _ask()[:2] == ("--user", "--map-root-user")


def test_namespaces_that_end_at_once_are_told_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much it was to be told."""
    monkeypatch.setenv("PATH", programs(tmp_path, ENDING_AT_ONCE))
    monkeypatch.setattr("scripts.local_cluster.sandbox.usable_flags", _ask)
    files = {"/run/large": "x" * 1_000_000}
    plan = ClusterPlan((Machine("a", "10.0.0.1"),), (), (Door("page", 0, "10.0.0.1", 80),), files)

    with pytest.raises(NoNamespacesError, match=r"ended at once, with 3.*as root.*--privileged"):
        running(plan).__enter__()
