"""Runs the planner until it is stopped: rounds on one thread, the page on others."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType

from disagg_cluster.host.run_dir.layout import RunFolder
from disagg_cluster.host.service_manager import ServiceManager
from disagg_cluster.nodefile.web.access import WebConfigWatch
from disagg_cluster.planner.advice.cluster_engines import read_engines
from disagg_cluster.planner.diagnose.families import FAMILIES
from disagg_cluster.planner.diagnose.reading.rolling_diagnosis import RollingDiagnosis
from disagg_cluster.planner.diagnose.reading.rolling_series import RollingSeries
from disagg_cluster.planner.diagnose.reading.series_queries import SeriesQueries
from disagg_cluster.planner.history.prometheus_history import PrometheusHistory
from disagg_cluster.planner.moving.acting import Acting
from disagg_cluster.planner.moving.local_mover import LocalMover
from disagg_cluster.planner.moving.reported_moves import ReportedMoves
from disagg_cluster.planner.rebalance.limits import HOUR_SECONDS, RebalanceMode
from disagg_cluster.planner.service.diagnosis_rounds import DiagnosisRounds
from disagg_cluster.planner.service.planner_landing import PlannerLanding
from disagg_cluster.planner.service.planner_lock import planner_lock
from disagg_cluster.planner.service.planner_rounds import PlannerRounds
from disagg_cluster.planner.service.planner_state import PlannerState, planner_rows
from disagg_cluster.planner.service.prometheus_identity import PrometheusIdentity
from disagg_cluster.planner.service.rolling_history import RollingHistory
from disagg_cluster.planner.settings.planner_file import PlannerConfig
from disagg_cluster.prometheus.prometheus_api import Prometheus
from disagg_exporter.http.listen import ListenAddress
from disagg_exporter.http.server.authentication import OPEN
from disagg_exporter.http.server.routes import Site
from disagg_exporter.http.server.server import MetricsServer
from disagg_exporter.metrics.daemon_process import DaemonProcess
from disagg_exporter.metrics.page_cache import PageCache

_log = logging.getLogger("disagg_node")
_HEARTBEAT_SECONDS = 5.0
_HUNG_SECONDS = 900.0
"""A round reads for at most ten minutes; after this long it counts as hung."""


class PlannerService:
    """The planner of one cluster; to be run once.

    Args:
        config: The planner file.
    """

    def __init__(self, config: PlannerConfig) -> None:
        self._config = config
        self._ending = threading.Event()
        self._web: WebConfigWatch | None = None
        self._identity: PrometheusIdentity | None = None
        self._server: MetricsServer | None = None
        self._process = DaemonProcess()
        self._heartbeat_seconds = time.monotonic()

    def run(self, serving: Callable[[ListenAddress], None]) -> None:
        """Serve and run rounds until SIGINT or SIGTERM; SIGHUP reloads the web-config file.

        Raises:
            ConfigError: A file that the planner file names cannot be used.
            ListenError: The address cannot be listened on.
            PlannerRunsError: Another planner holds the lock.
        """
        manager = ServiceManager(os.environ, _log)
        with contextlib.ExitStack() as stack:
            if self._config.lock_file is not None:
                stack.enter_context(planner_lock(Path(self._config.lock_file)))
            if self._config.listen.web_config is not None:
                self._web = WebConfigWatch(Path(self._config.listen.web_config), _log)
                stack.enter_context(self._web)
            prometheus = stack.enter_context(self._prometheus())
            history = RollingHistory(
                PrometheusHistory(prometheus, say=self._heartbeat),
                self._config.history.seconds,
                self._config.history.step_seconds,
                self._config.cluster,
            )
            diagnosing = self._diagnosing(prometheus)
            rounds = PlannerRounds(
                history,
                lambda now_seconds: read_engines(prometheus, self._config.cluster, now_seconds)[0],
                self._config,
                self._process.usage,
                self._acting(prometheus),
            )
            self._server = server = self._make_server(rounds, diagnosing)
            stack.callback(server.close)
            # The first signal interrupts the work under way.
            with contextlib.suppress(_Ended), self._signals():
                serving(server.start())
                manager.ready()
                if diagnosing is not None:
                    self._start_diagnosis(diagnosing)
                self._run_rounds(rounds)
            manager.stopping()

    def _acting(self, prometheus: Prometheus) -> Acting | None:
        settings = self._config.rebalance
        if settings.mode is not RebalanceMode.ACT or settings.run_dir is None:
            return None
        seconds = max(HOUR_SECONDS, settings.cool_down_seconds)
        reported = ReportedMoves(prometheus, self._config.cluster, seconds)
        mover = LocalMover(RunFolder(Path(settings.run_dir)).control)
        return Acting(mover, _log, reported.read)

    def _diagnosing(self, prometheus: Prometheus) -> DiagnosisRounds | None:
        settings, config = self._config.diagnosis, self._config
        if not settings.enabled:
            return None
        queries = SeriesQueries(prometheus, FAMILIES, config.cluster)
        diagnosis = RollingDiagnosis(
            RollingSeries(queries, settings.minutes * 60),
            lambda key: config.targets_of(config.of_model(key.model_name, key.engine_namespace)),
        )
        return DiagnosisRounds(diagnosis.diagnose, settings.every_seconds)

    def _start_diagnosis(self, diagnosing: DiagnosisRounds) -> None:
        """Run diagnoses on a daemon thread of their own, since planner rounds take minutes."""
        run = partial(diagnosing.run, self._ending)
        threading.Thread(target=run, name="diagnosis", daemon=True).start()

    def _run_rounds(self, rounds: PlannerRounds) -> None:
        due_seconds = time.monotonic()
        while not self._ending.is_set():
            self._heartbeat()
            if time.monotonic() >= due_seconds:
                due_seconds = time.monotonic() + self._config.every_seconds
                if self._identity is not None:
                    self._identity.reload()
                rounds.run_round(time.time())
            rounds.refresh()
            self._ending.wait(_HEARTBEAT_SECONDS)

    def _make_server(
        self, rounds: PlannerRounds, diagnosing: DiagnosisRounds | None
    ) -> MetricsServer:
        def state() -> PlannerState:
            server, web, identity = self._server, self._web, self._identity
            further = () if server is None else server.collectors()
            if identity is not None:
                further = (*further, identity.status())
            if web is not None:
                further = (*further, web.status())
            refusals = {} if server is None else server.refusals()
            known = rounds.state
            if diagnosing is not None:
                known = diagnosing.added_to(known)
            return replace(known, collectors=(*known.collectors, *further), http_refusals=refusals)

        cluster = self._config.cluster
        name = f"Planner of {cluster}" if cluster else "Planner"
        site = Site(
            PageCache(state, planner_rows, time.monotonic_ns),
            PlannerLanding(name, state, time.monotonic_ns),
            lambda: rounds.why_not_ready,
            lambda: time.monotonic() - self._heartbeat_seconds,
            dead_seconds=_HUNG_SECONDS,
        )
        return MetricsServer(
            self._config.listen.metrics_address,
            site,
            access=lambda: OPEN if self._web is None else self._web.access,
            setting="`listen: metrics:` in the planner file",
        )

    @contextlib.contextmanager
    def _prometheus(self) -> Iterator[Prometheus]:
        settings = self._config.prometheus
        with contextlib.closing(Prometheus(settings.url)) as prometheus:
            if settings.http_config is not None:
                by_tls = settings.url.startswith("https:")
                self._identity = PrometheusIdentity(prometheus, Path(settings.http_config), by_tls)
            yield prometheus

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        def end(_number: int, _frame: FrameType | None) -> None:
            if not self._ending.is_set():
                self._ending.set()
                # A round may wait minutes for Prometheus.
                raise _Ended

        def reload(_number: int, _frame: FrameType | None) -> None:
            if self._web is not None:
                self._web.check_now()

        handlers = {signal.SIGINT: end, signal.SIGTERM: end, signal.SIGHUP: reload}
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _heartbeat(self, _line: str = "") -> None:
        self._heartbeat_seconds = time.monotonic()


class _Ended(BaseException):
    """Interrupts a round on a signal; no `Exception`, so collectors do not count it as failure."""
