"""What is wrong with who may steer a node from elsewhere: a port that would let everybody."""

from __future__ import annotations

from collections.abc import Iterator

from disagg_cluster.config.problems import Finding, YamlPath
from disagg_cluster.nodefile.draft import Draft
from disagg_cluster.nodefile.worker_checks import Host

_AT = ("control", "grpc")
_PACKAGES = ("grpc", "grpc_health", "google.protobuf")


def check_control(draft: Draft, host: Host) -> Iterator[Finding]:
    """Everything wrong between the values of `control:`."""
    grpc = draft.config.control.grpc
    if grpc is None or not draft.sure(*_AT):
        return
    if not all(map(host.installed, _PACKAGES)):
        hint = "pip install 'disagg-node[grpc]', or leave the section out"
        yield Finding(_AT, "gRPC is not installed", hint)
    named: list[tuple[YamlPath, str | None]] = [
        ((*_AT, "web_config"), grpc.web_config),
        ((*_AT, "token_file"), grpc.token_file),
    ]
    if grpc.listen is not None and grpc.web_config is None and draft.sure(*_AT, "web_config"):
        hint = (
            "add web_config: a file with tls_server_config, and in that "
            "client_auth_type: RequireAndVerifyClientCert, or here a token_file"
        )
        yield Finding((*_AT, "listen"), "whoever reaches this port could steer the workers", hint)
    for path, file in named:
        if file is None:
            continue
        if grpc.listen is None and draft.sure(*_AT, "listen"):
            hint = "add listen, an address such as 0.0.0.0:9849, or leave it out"
            yield Finding(path, "only means something for a port", hint)
        elif not host.exists(file):
            yield Finding(path, f"{file} is not there")
