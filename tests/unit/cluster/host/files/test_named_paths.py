"""A file named by a process is read in that process's view, and nothing else is."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from disagg_cluster.host.files.named_paths import MAX_LINKS, read_file_of

PID = 7


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The root of a process with a separate one, whose folder in /proc is at `proc`."""
    root = tmp_path / "its-root"
    (root / "etc" / "tls").mkdir(parents=True)
    (root / "etc" / "tls" / "tls.crt").write_text("inside")
    process = tmp_path / "proc" / str(PID)
    process.mkdir(parents=True)
    (process / "root").symlink_to(root)
    (process / "cwd").symlink_to("/etc")
    return root


def read(root: Path, path: str, most_bytes: int = 100) -> bytes:
    return read_file_of(PID, path, most_bytes, root.parent / "proc")


@pytest.mark.parametrize(
    "path",
    [
        "/etc/tls/tls.crt",
        "tls/tls.crt",
        "/etc/./tls//tls.crt",
        "/etc/tls/../tls/tls.crt",
        "/../../../../etc/tls/tls.crt",
    ],
)
def test_a_path_is_resolved_in_the_processs_view(root: Path, path: str) -> None:
    assert read(root, path) == b"inside"


def test_links_are_followed_within_its_root_as_kubernetes_makes_them(root: Path) -> None:
    (root / "run" / "tls" / "..data").mkdir(parents=True)
    (root / "run" / "tls" / "..data" / "tls.crt").write_text("mounted")
    (root / "run" / "tls" / "tls.crt").symlink_to("..data/tls.crt")
    (root / "var").mkdir()
    (root / "var" / "run").symlink_to("/run")

    assert read(root, "/var/run/tls/tls.crt") == b"mounted"


def test_no_link_leads_out_of_its_root(root: Path) -> None:
    secret = root.parent / "secret"
    secret.write_text("outside")
    (root / "up").symlink_to("../../secret")
    (root / "absolute").symlink_to(secret)
    (root / "folder").symlink_to(root.parent)

    for path in ("/up", "/absolute", "/folder/secret", "/../secret"):
        with pytest.raises(FileNotFoundError):
            read(root, path)


def test_circular_links_end(root: Path) -> None:
    (root / "a").symlink_to("/b")
    (root / "b").symlink_to("/a")

    with pytest.raises(OSError, match="symbolic links"):
        read(root, "/a")


def test_a_chain_of_links_has_an_end(root: Path) -> None:
    for number in range(MAX_LINKS + 1):
        (root / f"l{number}").symlink_to(f"/l{number + 1}")
    (root / f"l{MAX_LINKS + 1}").write_text("x")

    assert read(root, "/l1") == b"x"
    with pytest.raises(OSError, match="symbolic links"):
        read(root, "/l0")


def test_only_regular_files_are_opened(root: Path) -> None:
    """Opening a pipe would block; opening a device may have any effect."""
    os.mkfifo(root / "pipe")
    (root / "empty").touch()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(root / "s"))

        for path in ("/pipe", "/empty", "/s", "/etc", "/", ""):
            with pytest.raises(OSError, match=r"no regular file|Is a directory"):
                read(root, path)


def test_a_file_that_is_too_large_is_not_read_whole(root: Path) -> None:
    (root / "large").write_bytes(b"x" * 101)

    with pytest.raises(OSError, match="larger than 100 bytes"):
        read(root, "/large")


def test_no_descriptor_stays_open_whatever_happens(root: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for path in ("/etc/tls/tls.crt", "/nowhere", "/etc", "/../../etc/tls/tls.crt"):
        try:
            read(root, path)
        except OSError:
            continue

    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_process_that_has_gone_has_no_files() -> None:
    with pytest.raises(FileNotFoundError):
        read_file_of(2**22 + 1, "/etc/hostname", 100)
