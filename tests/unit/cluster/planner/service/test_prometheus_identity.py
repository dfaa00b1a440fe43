"""Credentials of the planner for Prometheus while their file changes."""

from __future__ import annotations

import ssl
from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path

import pytest

from disagg_cluster.config.problems import ConfigError
from disagg_cluster.planner.service.prometheus_identity import PrometheusIdentity
from disagg_cluster.prometheus.prometheus_api import Prometheus
from support.certificates import authority


class Renewed(Prometheus):
    """Records the credentials that it is given; sends nothing."""

    def __init__(self) -> None:
        super().__init__("http://nobody")
        self.given: list[tuple[Mapping[str, str], ssl.SSLContext | None]] = []

    def renew(self, headers: Mapping[str, str], tls: ssl.SSLContext | None) -> None:
        self.given.append((headers, tls))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file that names another file with a password."""
    path = tmp_path / "http.yaml"
    path.write_text("basic_auth: {username: planner, password_file: secret}\n")
    (tmp_path / "secret").write_text("first\n")
    return path


def basic(password: str) -> dict[str, str]:
    return {"Authorization": f"Basic {b64encode(f'planner:{password}'.encode()).decode()}"}


def test_a_changed_secret_is_used_from_the_next_round(file: Path) -> None:
    prometheus = Renewed()
    identity = PrometheusIdentity(prometheus, file, by_tls=False)

    identity.reload()
    (file.parent / "secret").write_text("second\n")
    identity.reload()

    assert prometheus.given == [(basic("first"), None), (basic("second"), None)]
    assert identity.status().success


def test_a_changed_ca_is_trusted_from_the_next_round(file: Path) -> None:
    prometheus = Renewed()
    file.write_text("tls_config: {ca_file: ca.pem}\n")
    trusted = file.parent / "ca.pem"
    authority().cert_pem.write_to_path(str(trusted))
    identity = PrometheusIdentity(prometheus, file, by_tls=True)

    identity.reload()
    trusted.write_bytes(trusted.read_bytes() + b"\n")
    identity.reload()

    assert len({id(tls) for _, tls in prometheus.given}) == len(prometheus.given) == 2


def test_an_unusable_file_keeps_the_last_credentials_and_is_reported(
    file: Path,
) -> None:
    prometheus = Renewed()
    identity = PrometheusIdentity(prometheus, file, by_tls=False)
    file.write_text("basic_auth: {username: planner}\n")

    identity.reload()

    assert not identity.status().success
    assert len(prometheus.given) == 1
    file.write_text("basic_auth: {username: planner, password: third}\n")
    identity.reload()
    assert identity.status().success
    assert prometheus.given[-1] == (basic("third"), None)


def test_an_unusable_file_at_the_start_is_an_error(file: Path) -> None:
    file.write_text("nothing: of ours\n")

    with pytest.raises(ConfigError):
        PrometheusIdentity(Renewed(), file, by_tls=False)
