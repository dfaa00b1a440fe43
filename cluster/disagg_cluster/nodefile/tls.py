"""What is wrong with what a node file says of the TLS of engines."""

from __future__ import annotations

from collections.abc import Iterator

from disagg_cluster.config import EngineTls
from disagg_cluster.config.problems import Finding, YamlPath
from disagg_cluster.nodefile.draft import Draft
from disagg_cluster.nodefile.worker_checks import Host

_FILES = ("ca_file", "cert_file", "key_file")


def check_tls(draft: Draft, host: Host) -> Iterator[Finding]:
    """Everything wrong between the values of each `tls:`."""
    for path, tls in _told(draft):
        if draft.sure(*path):
            yield from _check(path, tls, host)
    yield from _plain(draft)
    for position, worker in draft.workers:
        path = ("workers", position, "tls")
        if not draft.sure("workers", position, "args"):
            continue
        if worker.certificate_file == "":
            args = ("workers", position, "args")
            yield Finding(args, "--ssl-certfile without a file", "give it the path of a PEM file")
        elif "tls" in worker.model_fields_set and worker.certificate_file is None:
            hint = "add --ssl-certfile to its args, or leave tls out"
            yield Finding(path, "only means something where the engine serves TLS", hint)


def _plain(draft: Draft) -> Iterator[Finding]:
    """Endpoints that are to be asked in plain HTTP, and yet to be known by something."""
    attach = draft.config.attach
    for number, engine in enumerate(attach.endpoints if attach else ()):
        path = ("attach", "endpoints", number)
        if engine.tls is not None and engine.url.startswith("http:") and draft.sure(*path):
            message, hint = "only means something for an https:// address", "write https://"
            yield Finding((*path, "tls"), message, hint)


def _told(draft: Draft) -> Iterator[tuple[YamlPath, EngineTls]]:
    attach = draft.config.attach
    if attach is not None:
        yield ("attach", "tls"), attach.tls
        for number, engine in enumerate(attach.endpoints):
            if engine.tls is not None:
                yield ("attach", "endpoints", number, "tls"), engine.tls
    for position, worker in draft.workers:
        yield ("workers", position, "tls"), worker.tls


def _check(path: YamlPath, tls: EngineTls, host: Host) -> Iterator[Finding]:
    if tls.key_file is not None and tls.cert_file is None:
        hint = "add cert_file, the certificate that it is the key of"
        yield Finding((*path, "key_file"), "a key without its certificate", hint)
    if tls.insecure and tls.ca_file is not None:
        hint = "leave one of them out"
        yield Finding((*path, "insecure"), "says the opposite of ca_file", hint)
    for key in _FILES:
        file: str | None = getattr(tls, key)
        if file is not None and not host.exists(file):
            yield Finding((*path, key), f"{file} is not there")
