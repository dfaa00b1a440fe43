"""Who the planner is to its Prometheus while the file that says so changes."""

from __future__ import annotations

import ssl
from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path

import pytest

from disagg_cluster.config.problems import ConfigError
from disagg_cluster.planner.service.asker_identity import AskerIdentity
from disagg_cluster.prometheus.prometheus_api import Prometheus
from support.certificates import authority


class Renewed(Prometheus):
    """Keeps who it was told to be; asks nobody."""

    def __init__(self) -> None:
        super().__init__("http://nobody")
        self.told: list[tuple[Mapping[str, str], ssl.SSLContext | None]] = []

    def renew(self, headers: Mapping[str, str], tls: ssl.SSLContext | None) -> None:
        self.told.append((headers, tls))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file that names another with a password."""
    path = tmp_path / "http.yaml"
    path.write_text("basic_auth: {username: planner, password_file: secret}\n")
    (tmp_path / "secret").write_text("first\n")
    return path


def basic(password: str) -> dict[str, str]:
    return {"Authorization": f"Basic {b64encode(f'planner:{password}'.encode()).decode()}"}


def test_a_secret_that_was_mounted_anew_is_shown_from_the_next_round_on(file: Path) -> None:
    prometheus = Renewed()
    identity = AskerIdentity(prometheus, file, by_tls=False)

    identity.look()
    (file.parent / "secret").write_text("second\n")
    identity.look()

    assert prometheus.told == [(basic("first"), None), (basic("second"), None)]
    assert identity.status().success


def test_another_authority_is_trusted_from_the_next_round_on(file: Path) -> None:
    prometheus = Renewed()
    file.write_text("tls_config: {ca_file: ca.pem}\n")
    trusted = file.parent / "ca.pem"
    authority().cert_pem.write_to_path(str(trusted))
    identity = AskerIdentity(prometheus, file, by_tls=True)

    identity.look()
    trusted.write_bytes(trusted.read_bytes() + b"\n")
    identity.look()

    assert len({id(tls) for _, tls in prometheus.told}) == len(prometheus.told) == 2


def test_of_a_file_that_cannot_be_used_what_was_read_before_stands_and_it_is_shown(
    file: Path,
) -> None:
    prometheus = Renewed()
    identity = AskerIdentity(prometheus, file, by_tls=False)
    file.write_text("basic_auth: {username: planner}\n")

    identity.look()

    assert not identity.status().success
    assert len(prometheus.told) == 1
    file.write_text("basic_auth: {username: planner, password: third}\n")
    identity.look()
    assert identity.status().success
    assert prometheus.told[-1] == (basic("third"), None)


def test_at_the_start_a_file_that_cannot_be_used_is_an_error(file: Path) -> None:
    file.write_text("nothing: of ours\n")

    with pytest.raises(ConfigError):
        AskerIdentity(Renewed(), file, by_tls=False)
