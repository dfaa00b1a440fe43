"""What tests of the step records share: a daemon's bare socket, and vLLM's stats by hand."""

from __future__ import annotations

import socket
from pathlib import Path
from types import SimpleNamespace

from disagg_exporter.inside_engine.disagg_steps import wire
from support.wire_records import records_in


class BareDaemon:
    """A listening socket that accepts one connection at a time and unpacks what arrives."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.link: socket.socket | None = None
        self._unheard: list[wire.Record] = []
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listening.bind(str(path))
        self._listening.listen(4)
        self._listening.settimeout(5)

    def accept(self) -> None:
        """Accept the next connection, in place of the last."""
        if self.link is not None:
            self.link.close()
        self.link, _ = self._listening.accept()
        self.link.settimeout(5)

    def hear(self) -> wire.Record:
        """Return the next record, waiting for it."""
        assert self.link is not None
        if not self._unheard:
            self._unheard.extend(records_in(self.link.recv(wire.MAX_PACKET_BYTES)))
        return self._unheard.pop(0)

    def hear_all(self) -> list[wire.Record]:
        """Return what has arrived so far, without waiting."""
        assert self.link is not None
        self.link.setblocking(False)
        try:
            while packet := self.link.recv(wire.MAX_PACKET_BYTES):
                self._unheard.extend(records_in(packet))
        except BlockingIOError:
            pass
        self.link.settimeout(5)
        heard, self._unheard = self._unheard, []
        return heard

    def waits(self) -> bool:
        """Return whether a connection is waiting to be accepted."""
        self._listening.setblocking(False)
        try:
            self._listening.accept()[0].close()
        except BlockingIOError:
            return False
        finally:
            self._listening.settimeout(5)
        return True

    def die(self) -> None:
        """Close everything, as at the death of the process, and leave the file."""
        self._listening.close()
        if self.link is not None:
            self.link.close()


def scheduler_stats(
    details: SimpleNamespace | None = None,
    *,
    running: int = 0,
    waiting: int = 0,
    deferred: int = 0,
    kv: float = 0.0,
) -> SimpleNamespace:
    """Return the stats of vLLM's scheduler after a step."""
    return SimpleNamespace(
        num_running_reqs=running,
        num_waiting_reqs=waiting,
        num_skipped_waiting_reqs=deferred,
        kv_cache_usage=kv,
        iteration_details=details,
    )


def iteration_details(
    context: tuple[int, int] = (0, 0),
    generation: tuple[int, int] = (0, 0),
    *,
    elapsed_ms: float = 0.0,
    encoder_inputs: int = 0,
    dummy: bool = False,
) -> SimpleNamespace:
    """Return vLLM's details of one step: (requests, tokens) of each phase and its time."""
    return SimpleNamespace(
        iteration_index=0,
        num_ctx_requests=context[0],
        num_ctx_tokens=context[1],
        num_generation_requests=generation[0],
        num_generation_tokens=generation[1],
        elapsed_ms=elapsed_ms,
        num_encoder_inputs=encoder_inputs,
        num_encoder_output_tokens=0,
        is_dummy=dummy,
    )


def iteration_stats(
    *, computed: int = 0, cached: int = 0, external: int = 0, preempted: int = 0
) -> SimpleNamespace:
    """Return the stats of vLLM's front end for a step's outputs."""
    return SimpleNamespace(
        prompt_token_stats=SimpleNamespace(
            computed=computed,
            local_cache_hit=cached,
            external_kv_transfer=external,
            cached_tokens=cached + external,
        ),
        num_preempted_reqs=preempted,
    )
