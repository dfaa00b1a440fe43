"""The path of a request: router, prefill, KV transfer, decode; or one engine that does it all."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from disagg_cluster.simulator.cluster.event_queue import EventQueue, RequestEnded
from disagg_cluster.simulator.cluster.network import KvNetwork, RequestRouter, Transfer
from disagg_cluster.simulator.cluster.spec import ClusterSpec
from disagg_cluster.simulator.engine.batch import Request, Sequence
from disagg_cluster.simulator.process import EngineProcess
from disagg_cluster.simulator.server import Server
from disagg_cluster.simulator.telemetry.frontend_page import FrontendPage
from disagg_exporter.model import SECOND_NS, Direction, Role


@dataclass(slots=True, eq=False)
class RequestProgress:
    """One request under way: the engine that prefills it for another, and the one that decodes."""

    request: Request
    prefiller: EngineProcess | None = None
    decoder: EngineProcess | None = None
    read: bool = False
    first_token_ns: int | None = None


class RequestFlow:
    """Moves requests through the engines, and reports their ends.

    The prefill engine is chosen when a request arrives, the decode engine when its prompt is
    computed; a request for which there is none waits in the router.

    Faults change these: the router takes `router_seconds` for each request, one after the other,
    and `before_entry_seconds` and `before_decode_seconds` pass beside the hop before an engine has
    a request, however many there are.
    """

    def __init__(
        self,
        cluster: ClusterSpec,
        queue: EventQueue,
        transfer: KvNetwork,
        *,
        emit_ends: bool,
    ) -> None:
        self.servers: Mapping[str, Server] = {}
        self.transfer = transfer
        self.router_seconds = self.before_entry_seconds = self.before_decode_seconds = 0.0
        self._router_free_ns = self._in_router = 0
        reports_queue = cluster.router_tells_queue
        self.front = FrontendPage(
            cluster.engines[0].model.name, (lambda: self.queued) if reports_queue else None
        )
        self.completed = 0
        self.failed = 0
        self.cluster = cluster
        self._queue = queue
        self._emit_ends = emit_ends
        self.entry_router = RequestRouter(cluster.policy, cluster.most_in_flight)
        self._writers = RequestRouter(cluster.policy, cluster.most_in_flight)
        self._awaiting_prefill: deque[RequestProgress] = deque()
        self._awaiting_decode: deque[RequestProgress] = deque()
        self._under_way: dict[int, RequestProgress] = {}

    @property
    def queued(self) -> int:
        """Requests held by the router: it is busy, or no engine may take them."""
        return self._in_router + len(self._awaiting_prefill) + len(self._awaiting_decode)

    @property
    def under_way(self) -> int:
        """Requests that have not ended."""
        return len(self._under_way)

    def unfinished(self) -> Iterator[tuple[Request, int | None]]:
        """Yield those requests, each with the time of its user's first token (None: not yet)."""
        for progress in self._under_way.values():
            yield progress.request, progress.first_token_ns

    def arrive(self, request: Request) -> None:
        """Accept a request from its user."""
        self.front.arrived()
        self._under_way[request.number] = progress = RequestProgress(request)
        if self.router_seconds:
            now_ns = self._queue.now_ns
            self._router_free_ns = max(now_ns, self._router_free_ns)
            self._router_free_ns += round(self.router_seconds * SECOND_NS)
            self._in_router += 1
            self._queue.at(self._router_free_ns, partial(self._leave_router, progress))
        else:
            self._enter(progress)

    def became_ready(self, server: Server) -> None:
        """Record that a server is ready."""
        self._route()

    def died(self, process: EngineProcess) -> None:
        """Record that a process died: its requests failed, the KV it kept for others is lost."""
        for progress in list(self._under_way.values()):
            reading = progress.prefiller is process and not progress.read
            if reading or progress.decoder is process:
                self._end(progress, failed=True)

    def started(self, process: EngineProcess, sequence: Sequence) -> None:
        """Record an engine's first token; the user receives that of the decoding engine."""
        progress = self._under_way[sequence.number]
        if process is progress.decoder and sequence.first_token_ns is not None:
            progress.first_token_ns = sequence.first_token_ns
            self.front.first_token(progress.request, sequence.first_token_ns)

    def finished(self, process: EngineProcess, sequence: Sequence) -> None:
        """Record that an engine has generated the last requested token."""
        progress = self._under_way[sequence.number]
        if process is progress.decoder:
            self._end(progress, first_token_ns=sequence.first_token_ns)
            return
        progress.read = True
        self.entry_router.end(process.name)
        self._awaiting_decode.append(progress)
        self._route()

    def wants_kv(self, process: EngineProcess, sequence: Sequence) -> None:
        """Start the transfer of a prompt's KV to a decode engine that has room for it."""
        progress = self._under_way[sequence.number]
        if progress.prefiller is None:
            return
        size_bytes = sequence.external_tokens * process.spec.model.kv_bytes_per_token
        transfer = self.transfer.start_transfer(
            progress.prefiller.name, process.name, size_bytes, self._queue.now_ns
        )
        self._queue.at(transfer.end_ns, partial(self._arrived, progress, transfer))

    def _leave_router(self, progress: RequestProgress) -> None:
        self._in_router -= 1
        self._enter(progress)

    def _enter(self, progress: RequestProgress) -> None:
        self._awaiting_prefill.append(progress)
        self._route()

    def _route(self) -> None:
        while self._awaiting_prefill:
            tokens = self._awaiting_prefill[0].request.prompt_tokens
            process = self._choose(self.entry_router, tokens, Role.MIXED, Role.PREFILL)
            if process is None:
                break
            progress = self._awaiting_prefill.popleft()
            if process.spec.role is Role.MIXED:
                progress.decoder = process
            else:
                progress.prefiller = process
            hop_seconds = self.cluster.hop_seconds + self.before_entry_seconds
            self._queue.after(hop_seconds, partial(self._send_to_engine, progress))
        while self._awaiting_decode and (process := self._choose(self._writers, 0, Role.DECODE)):
            progress = self._awaiting_decode.popleft()
            progress.decoder = process
            hop_seconds = self.cluster.hop_seconds + self.before_decode_seconds
            self._queue.after(hop_seconds, partial(self._send_to_engine, progress))

    def _choose(
        self, router: RequestRouter, prompt_tokens: int, *roles: Role
    ) -> EngineProcess | None:
        ready = [name for role in roles for name in self.cluster.of(role)]
        name = router.choose([name for name in ready if self.servers[name].ready], prompt_tokens)
        return None if name is None else self.servers[name].process

    def _send_to_engine(self, progress: RequestProgress) -> None:
        """Give a request to the next engine."""
        request = progress.request
        if request.number not in self._under_way:
            return
        process = progress.decoder or progress.prefiller
        reading = progress.decoder is None
        sequence = Sequence(
            number=request.number,
            prompt_tokens=request.prompt_tokens,
            max_tokens=1 if reading else request.output_tokens,
            arrived_ns=self._queue.now_ns,
            prefix=request.prefix,
            remote_prompt=progress.read,
            kept=reading,
        )
        if process is None or not process.scheduler.fits(sequence):
            self._end(progress, failed=True)
        else:
            process.submit(sequence)

    def _arrived(self, progress: RequestProgress, transfer: Transfer) -> None:
        """Handle the end of a transfer, successful or not."""
        number = progress.request.number
        prefiller, decoder = progress.prefiller, progress.decoder
        if number not in self._under_way or prefiller is None or decoder is None:
            return
        if not prefiller.alive:
            transfer = replace(transfer, failed=True)
        decoder.telemetry.fetched(transfer)
        if transfer.failed:
            self._leave_to_expire(progress)
            decoder.compute_locally(number)
        else:
            self.servers[prefiller.name].gpus.move(Direction.SENT, transfer.bytes)
            self.servers[decoder.name].gpus.move(Direction.RECEIVED, transfer.bytes)
            prefiller.release_kv(number)
            decoder.receive(number)

    def _leave_to_expire(self, progress: RequestProgress) -> None:
        if progress.prefiller is not None:
            release_kv = partial(
                progress.prefiller.release_kv, progress.request.number, expired=True
            )
            self._queue.after(self.cluster.lease_seconds, release_kv)

    def _end(
        self, progress: RequestProgress, *, first_token_ns: int | None = None, failed: bool = False
    ) -> None:
        prefiller, decoder = progress.prefiller, progress.decoder
        del self._under_way[progress.request.number]
        self.completed += not failed
        self.failed += failed
        self.front.ended(progress.request, self._queue.now_ns, failed=failed)
        if failed and progress.read:
            self._leave_to_expire(progress)
        if decoder is not None:
            router = self.entry_router if decoder.spec.role is Role.MIXED else self._writers
            router.end(decoder.name)
        elif prefiller is not None and not progress.read:
            self.entry_router.end(prefiller.name)
        if self._emit_ends:
            entry = prefiller or decoder
            self._queue.emit(
                RequestEnded(
                    request=progress.request,
                    prefill_engine=entry.name if entry else "",
                    decode_engine=decoder.name if decoder else "",
                    first_token_ns=first_token_ns,
                    ended_ns=self._queue.now_ns,
                    failed=failed,
                )
            )
        if self.queued:
            self._route()
