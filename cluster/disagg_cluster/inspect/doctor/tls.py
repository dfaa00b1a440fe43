"""What is wrong with the TLS of an engine, and the way out of each; pure."""

from __future__ import annotations

from collections.abc import Iterator

from disagg_cluster.inspect.doctor.facts import Finding, Level
from disagg_cluster.inspect.views import EngineView
from disagg_exporter.http.tls_words import TLS_FAULT_TEXTS, TlsFault, Verified

_WHERE = "under its own `tls:` in the node file, or `attach: tls:` for all"
_STEPS = {
    TlsFault.EXPIRED: "renew the certificate of {engine}",
    TlsFault.UNTRUSTED: f"name who signs it: `ca_file:` {_WHERE}",
    TlsFault.OTHER_NAME: f"say for which name it is: `server_name:` {_WHERE}",
    TlsFault.NOT_PINNED: (
        "restart {engine}, so that it takes up the certificate in its file; "
        "is it not {engine} that answers there?"
    ),
    TlsFault.WANTS_OURS: f"name a certificate of ours: `cert_file:` and `key_file:` {_WHERE}",
    TlsFault.NO_TLS: "list its address as http://",
    TlsFault.TLS_WANTED: "list its address as https:// under `attach: endpoints:`",
    TlsFault.HUNG_UP: (
        "look at the log of {engine}; where it speaks TLS, list its address as https://, and where "
        "it wants a certificate of ours, name it: `tls: cert_file: key_file:`"
    ),
    TlsFault.NO_TRUST: (
        f"run as root or as its user, so that its own certificate file can be read, or name "
        f"`ca_file:` {_WHERE}; `insecure: true` believes anybody"
    ),
    TlsFault.UNREADABLE: "the daemon's log says which file, and why",
    TlsFault.FAILED: "the daemon's log says what OpenSSL thinks of it",
}


def faulty(engine: EngineView) -> Iterator[Finding]:
    """Why the page of an engine is not known, where TLS is the reason."""
    try:
        fault = TlsFault(engine.tls_fault)
    except ValueError:
        return  # none, or one of a newer daemon
    what = f"{engine.engine} is not read: {TLS_FAULT_TEXTS[fault]}"
    yield Finding(Level.WRONG, what, _STEPS[fault].format(engine=engine.engine), gain=6)


def unverified(engine: EngineView) -> Iterator[Finding]:
    """Engines of which anybody could take the place."""
    if engine.verified == Verified.INSECURE:
        what = f"{engine.engine} is asked by TLS, and not verified (`insecure: true`)"
        yield Finding(Level.BETTER, what, f"name who signs its certificate: `ca_file:` {_WHERE}", 1)
