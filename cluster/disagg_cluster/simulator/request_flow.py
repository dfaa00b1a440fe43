"""The way of a request: router, prefill, KV transfer, decode; or one engine that does it all."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from disagg_cluster.simulator.cluster.cluster import ClusterSpec
from disagg_cluster.simulator.cluster.event_queue import Agenda
from disagg_cluster.simulator.cluster.events import RequestEnded
from disagg_cluster.simulator.cluster.kv_transfer import KvTransfer, Transfer
from disagg_cluster.simulator.cluster.router import Router
from disagg_cluster.simulator.engine.sequence import Request, Sequence
from disagg_cluster.simulator.process import Process
from disagg_cluster.simulator.server import Server
from disagg_exporter.model import Role


@dataclass(slots=True, eq=False)
class Journey:
    """One request under way: who reads its prompt for others, and who writes its tokens."""

    request: Request
    reader: Process | None = None
    writer: Process | None = None
    read: bool = False


class Journeys:
    """Brings requests through the engines, and says what became of them.

    The prefill engine is chosen when a request arrives, the decode engine when its prompt is
    read; a request for which there is none waits in the router.
    """

    def __init__(
        self, cluster: ClusterSpec, agenda: Agenda, transfer: KvTransfer, *, tell: bool
    ) -> None:
        self.servers: Mapping[str, Server] = {}
        self.transfer = transfer
        self.completed = 0
        self.failed = 0
        self._cluster = cluster
        self._agenda = agenda
        self._tell = tell
        self._readers = Router(cluster.policy, cluster.most_in_flight)
        self._writers = Router(cluster.policy, cluster.most_in_flight)
        self._to_read: deque[Journey] = deque()
        self._to_write: deque[Journey] = deque()
        self._journeys: dict[int, Journey] = {}

    @property
    def queued(self) -> int:
        """Requests that the router keeps, because no engine may take them."""
        return len(self._to_read) + len(self._to_write)

    @property
    def under_way(self) -> int:
        """Requests that have not ended."""
        return len(self._journeys)

    def arrive(self, request: Request) -> None:
        """Take a request from its user."""
        journey = self._journeys[request.number] = Journey(request)
        self._to_read.append(journey)
        self._route()

    def came(self, server: Server) -> None:
        """A server is ready."""
        self._route()

    def went(self, process: Process) -> None:
        """A process is dead: what was in it has failed, what it kept for others is lost."""
        for journey in list(self._journeys.values()):
            reading = journey.reader is process and not journey.read
            if reading or journey.writer is process:
                self._end(journey, failed=True)

    def finished(self, process: Process, sequence: Sequence) -> None:
        """An engine has written the last token that was asked of it."""
        journey = self._journeys[sequence.number]
        if process is journey.writer:
            self._end(journey, first_token_ns=sequence.first_token_ns)
            return
        journey.read = True
        self._readers.end(process.name)
        self._to_write.append(journey)
        self._route()

    def wants_kv(self, process: Process, sequence: Sequence) -> None:
        """A decode engine has room for a prompt's KV."""
        journey = self._journeys[sequence.number]
        if journey.reader is None:
            return
        size_bytes = sequence.external_tokens * process.spec.model.kv_bytes_per_token
        transfer = self.transfer.book(
            journey.reader.name, process.name, size_bytes, self._agenda.now_ns
        )
        self._agenda.at(transfer.end_ns, partial(self._arrived, journey, transfer))

    def _route(self) -> None:
        entries = (Role.MIXED, Role.PREFILL)
        while self._to_read and (process := self._choose(self._readers, *entries)):
            journey = self._to_read.popleft()
            if process.spec.role is Role.MIXED:
                journey.writer = process
            else:
                journey.reader = process
            self._agenda.after(self._cluster.hop_seconds, partial(self._set_out, journey))
        while self._to_write and (process := self._choose(self._writers, Role.DECODE)):
            journey = self._to_write.popleft()
            journey.writer = process
            self._agenda.after(self._cluster.hop_seconds, partial(self._set_out, journey))

    def _choose(self, router: Router, *roles: Role) -> Process | None:
        ready = [name for role in roles for name in self._cluster.of(role)]
        name = router.choose([name for name in ready if self.servers[name].ready])
        return None if name is None else self.servers[name].process

    def _set_out(self, journey: Journey) -> None:
        """Give a request to the engine that is next."""
        request = journey.request
        if request.number not in self._journeys:
            return
        process = journey.writer or journey.reader
        reading = journey.writer is None
        sequence = Sequence(
            number=request.number,
            prompt_tokens=request.prompt_tokens,
            max_tokens=1 if reading else request.output_tokens,
            arrived_ns=self._agenda.now_ns,
            prefix=request.prefix,
            remote_prompt=journey.read,
            kept=reading,
        )
        if process is None or not process.scheduler.fits(sequence):
            self._end(journey, failed=True)
        else:
            process.submit(sequence)

    def _arrived(self, journey: Journey, transfer: Transfer) -> None:
        """A transfer has ended, one way or the other."""
        number = journey.request.number
        reader, writer = journey.reader, journey.writer
        if number not in self._journeys or reader is None or writer is None:
            return
        if not reader.alive:
            transfer = replace(transfer, failed=True)
        writer.telemetry.fetched(transfer)
        if transfer.failed:
            self._leave_to_expire(journey)
            writer.go_without(number)
        else:
            reader.let_go(number)
            writer.receive(number)

    def _leave_to_expire(self, journey: Journey) -> None:
        if journey.reader is not None:
            let_go = partial(journey.reader.let_go, journey.request.number, expired=True)
            self._agenda.after(self._cluster.lease_seconds, let_go)

    def _end(
        self, journey: Journey, *, first_token_ns: int | None = None, failed: bool = False
    ) -> None:
        reader, writer = journey.reader, journey.writer
        del self._journeys[journey.request.number]
        self.completed += not failed
        self.failed += failed
        if failed and journey.read:
            self._leave_to_expire(journey)
        if writer is not None:
            router = self._readers if writer.spec.role is Role.MIXED else self._writers
            router.end(writer.name)
        elif reader is not None and not journey.read:
            self._readers.end(reader.name)
        if self._tell:
            entry = reader or writer
            self._agenda.tell(
                RequestEnded(
                    request=journey.request,
                    prefill_engine=entry.name if entry else "",
                    decode_engine=writer.name if writer else "",
                    first_token_ns=first_token_ns,
                    ended_ns=self._agenda.now_ns,
                    failed=failed,
                )
            )
        if self.queued:
            self._route()
