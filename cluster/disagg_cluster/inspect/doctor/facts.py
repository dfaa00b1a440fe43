"""The facts of a node that the doctor examines, and their meaning for one engine; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from disagg_cluster.inspect.views import EngineView
from disagg_exporter.http.tls_errors import TlsFault, Verified


class Level(StrEnum):
    """Severity of a finding: nothing to do, could be better, does not work."""

    FINE = "fine"
    WARN = "warn"
    WRONG = "wrong"

    @property
    def rank(self) -> int:
        """0 for the harmless."""
        return list(Level).index(self)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One finding; `step` is what to do about it, `gain` how much that helps (0 to 9).

    `engine` is the one to which the step applies, if it is for one.
    """

    level: Level
    what: str
    step: str = ""
    gain: int = 0
    engine: str = ""

    @property
    def whole_step(self) -> str:
        """The step for a reader who does not see the finding: it names the engine."""
        return self.step if self.engine in self.step else f"{self.engine}: {self.step}"


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """One worker as reported by its daemon.

    It has been in `state` for `state_seconds`, and is given up or restarted in `left_seconds`; None
    where unknown. `cause` is why it crashed last, `last_lines` its output then. `drained`: by hand.
    """

    worker: str
    state: str
    restarts: int = 0
    paused: bool = False
    state_seconds: float | None = None
    left_seconds: float | None = None
    cause: str = ""
    last_lines: tuple[str, ...] = ()
    drained: bool = False


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What is known of a node.

    `version` is that of the daemon that answered at `url`, None if none did; then engines and
    `lost` come from a scan without it. `devices` is their number, `no_gpus` why none of them is a
    GPU. `collectors` say whether the last round of each succeeded. `left_out_engines` were found
    and not attached to. `workers` are those that the daemon launches, `other_daemons` the processes
    of other daemons of ours on this host, `left_workers` those that a previous daemon has left
    running. `file` is the node file that was named.
    """

    url: str
    version: str | None = None
    simulated: bool = False
    devices: int = 0
    no_gpus: str = ""
    engines: tuple[EngineView, ...] = ()
    collectors: Mapping[str, bool] = field(default_factory=dict)
    lost: tuple[str, ...] = ()
    left_out_engines: int = 0
    workers: tuple[WorkerFacts, ...] = ()
    other_daemons: tuple[int, ...] = ()
    left_workers: tuple[str, ...] = ()
    file: str = ""
    in_cluster: bool = False
    node_name: bool = False
    kubelet_socket: bool = False
    grpc: bool = True


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Accuracy of an engine's numbers; `step` improves it, by `gain` (0 to 9)."""

    exact: bool
    text: str
    step: str = ""
    gain: int = 0


_PLUGIN = (
    'start it with our plugin: `eval "$(disagg-node plugin env)"` in its shell, then its own '
    "command with --enable-logging-iteration-details"
)
_PLUGIN_IN_POD = (
    'start it with our plugin: the annotation disagg-node/steps: "true" on its pod, and '
    "`disagg-node plugin copy` in an init container (docs/kubernetes-engines.md)"
)


_LET_SEE = "let the daemon read its GPUs, or see its processes (docs/attach.md)"


def accuracy(engine: EngineView) -> Accuracy:
    """Return the accuracy of an engine's numbers, by how they are measured."""
    match engine.method:
        case "steps" | "fpm":
            return _by_step(engine)
        case "engine_timers":
            text = "by the engine's own timers; a step of both phases counts as prefill there"
            return Accuracy(exact=False, text=text)
        case "page":
            text = f"inexact: device activity, divided by the tokens of its page{_error(engine)}"
            if engine.share_confidence == "low":
                text += (
                    "; confidence low: by tokens alone, its prompts are cut into pieces, or "
                    "another engine is on its GPUs"
                )
            return _inexact(engine, text, gain=4)
        case "page_cpu":
            text = (
                f"inexact: CPU time, divided by the tokens of its page{_error(engine)}; "
                "confidence low: 5 to 20 points too much prefill were measured"
            )
            return _inexact(engine, text, gain=4)
        case "follower":
            text = "inexact: a follower, its devices' activity, by its leader's shares or its role"
            return Accuracy(exact=False, text=text)
        case _ if engine.follows is not None:
            return Accuracy(
                exact=False,
                text=f"not divided: a follower reports nothing, and {_undivided(engine)}",
            )
        case "role":
            text = f"inexact: all activity of its devices counts as {engine.role}"
            return _inexact(engine, text, gain=5)
        case _ if engine.on_cpu:
            text = (
                "not measured: it reports no steps, no GPU of it is read, and its processes are "
                "not known, or its page cannot be used"
            )
            return _inexact(engine, text, gain=6, otherwise=_LET_SEE)
        case _:
            text = "not measured: it reports neither steps nor a page that can be used"
            return _inexact(engine, text, gain=6)


def _undivided(engine: EngineView) -> str:
    """Return why the time of a follower is attributed to no phase."""
    if engine.role in ("prefill", "decode"):
        return f"the activity of its devices, which would be {engine.role}, is not read"
    if engine.role == "unknown":
        return "its role is unknown"
    return f"its role, {engine.role}, does not say which phase"


def _by_step(engine: EngineView) -> Accuracy:
    # Our records carry totals, which restore those that never arrived; others' messages do not.
    fate = "recovered" if engine.method == "steps" else "lost and not restored"
    lost = f", {engine.lost_records:.0f} records {fate}" if engine.lost_records else ""
    measured = f"measured step by step{lost}"
    if engine.split == "model":
        return Accuracy(
            exact=True, text=f"{measured}; mixed steps divided by a cost model{_error(engine)}"
        )
    if engine.split == "unsure":
        text = f"{measured}; mixed steps divided by a cost model that is unsure of the share"
        return Accuracy(
            exact=True, text=text, step="wait: it learns from steps of other sizes", gain=1
        )
    if engine.split == "tokens":
        text = f"{measured}; mixed steps divided by tokens until its cost model is trusted"
        return Accuracy(
            exact=True, text=text, step="wait: its cost model is still learning", gain=1
        )
    return Accuracy(exact=True, text=measured)


def _inexact(engine: EngineView, text: str, gain: int, otherwise: str = "") -> Accuracy:
    # The plugin is for vLLM; other servers have to enable their own reports.
    steps = {
        "vllm": _PLUGIN_IN_POD if engine.pod else _PLUGIN,
        "dynamo": "switch its forward pass metrics on (DYN_FORWARDPASS_METRIC_PORT)",
        "sglang": "start it with --enable-forward-pass-metrics",
    }
    known = (steps.get(engine.kind, ""), otherwise)
    return Accuracy(exact=False, text=text, step="; or ".join(filter(None, known)), gain=gain)


def _error(engine: EngineView) -> str:
    if engine.residual_ratio is None:
        return ""
    fitted = f" over {engine.fitted_steps:.0f} samples" if engine.fitted_steps else ""
    return f" (error {engine.residual_ratio:.0%}{fitted})"


def unanswering(engine: EngineView, *, is_launched: bool) -> Diagnosis:
    """Return that an engine does not answer, and where the reason is to be seen."""
    step = f"disagg-node logs {engine.engine}"
    what = f"{engine.engine} does not answer: its load and its page are not known"
    if not is_launched:
        # Its page is all that is asked for.
        what = f"{engine.engine} does not answer with a page that can be read: its load is unknown"
        # Whether nothing listens there, or something that is no engine, the page does not say.
        step = (
            f"the daemon's log says why (`{engine.engine}: metrics page`); "
            "`curl http://HOST:PORT/metrics` shows what answers at its address"
        )
    if engine.kind == "sglang":
        step += "; SGLang needs --enable-metrics"
    return Diagnosis(Level.WRONG, what, step, gain=6)


_WHERE = "under its own `tls:` in the node file, or `attach: tls:` for all"
_STEPS = {
    TlsFault.EXPIRED: "renew the certificate of {engine}",
    TlsFault.UNTRUSTED: f"name the authority that signs it: `ca_file:` {_WHERE}",
    TlsFault.OTHER_NAME: f"give the name in its certificate: `server_name:` {_WHERE}",
    TlsFault.NOT_PINNED: (
        "restart {engine}, so that it loads the certificate in its file; if that does not help, "
        "check whether another server answers at its address"
    ),
    TlsFault.WANTS_OURS: f"give a client certificate: `cert_file:` and `key_file:` {_WHERE}",
    TlsFault.NO_TLS: "list its address as http://",
    TlsFault.TLS_WANTED: "list its address as https:// under `attach: endpoints:`",
    TlsFault.HUNG_UP: (
        "look at the log of {engine}; if it uses TLS, list its address as https://; if it requires "
        "a client certificate, give one: `tls: cert_file: key_file:`"
    ),
    TlsFault.NO_TRUST: (
        f"run as root or as its user, so that its own certificate file can be read, or name "
        f"`ca_file:` {_WHERE}; `insecure: true` accepts any server"
    ),
    TlsFault.UNREADABLE: "the daemon's log says which file, and why",
    TlsFault.FAILED: "the daemon's log has OpenSSL's reason",
}


def tls_faults(engine: EngineView) -> Iterator[Diagnosis]:
    """Yield why the page of an engine is not known, where TLS is the reason."""
    try:
        fault = TlsFault(engine.tls_fault)
    except ValueError:
        return  # none, or one of a newer daemon
    what = f"{engine.engine} is not read: {fault.text}"
    step = _STEPS[fault].format(engine=engine.engine)
    yield Diagnosis(Level.WRONG, what, step, gain=6, engine=engine.engine)


def unverified_engines(engine: EngineView) -> Iterator[Diagnosis]:
    """Yield engines that any server could impersonate."""
    if engine.verified == Verified.INSECURE:
        what = f"{engine.engine} is read over TLS, but not verified (`insecure: true`)"
        step = f"name the authority that signs its certificate: `ca_file:` {_WHERE}"
        yield Diagnosis(Level.WARN, what, step, gain=1, engine=engine.engine)
