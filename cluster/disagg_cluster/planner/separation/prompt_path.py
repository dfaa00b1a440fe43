"""The path of a request to its first token, with separate pools."""

from __future__ import annotations

import math
from dataclasses import replace

from disagg_cluster.planner.capacity.bisection import largest
from disagg_cluster.planner.capacity.decode_pool import DecodePool
from disagg_cluster.planner.capacity.engine_costs import EngineCosts
from disagg_cluster.planner.capacity.pool_capacity import PoolCapacity
from disagg_cluster.planner.capacity.prefill_pool import first_steps_seconds, prefill_pool
from disagg_cluster.planner.separation.kv_link import KvLink
from disagg_cluster.planner.separation.link_waits import Transfers, Wait, link_waits

_ALL_USED = 0.97
_AT_ONCE = (Wait(1.0, 0.0),)


class PromptPath:
    """A prefill engine's queue, the KV transfer, and the decode steps until the first token.

    The duration of all three depends on the load: transfers on the lengths and number of prompts,
    decode steps on the batch. A request is late if their sum misses the target.

    Args:
        prefill: Step times of each prefill engine.
        decode: The decode engines, with the requests and their targets.
        link: The link between any two engines.

    Raises:
        UnseenStepError: Step times of prefill engines are not known.
    """

    def __init__(self, prefill: EngineCosts, decode: DecodePool, link: KvLink) -> None:
        self._decode = decode
        mix, targets = decode.mix, decode.targets
        kv_bytes_per_token = prefill.shape.kv_bytes_per_token or 0.0
        token_seconds = link.token_seconds(kv_bytes_per_token)
        self._pool = prefill_pool(
            prefill,
            mix,
            replace(targets, itl_seconds=math.inf),
            link.latency_seconds,
            token_seconds,
        )
        mean_seconds = link.transfer_seconds(mix, kv_bytes_per_token)
        varying = token_seconds * mix.prompt_tokens / mean_seconds if mean_seconds else 0.0
        self.transfers = Transfers(mean_seconds, varying**2 * mix.prompt_dispersion)
        self._itl: dict[float, float] = {}

    def late_share(
        self,
        requests_per_second: float,
        engines: tuple[int, int],
        decode_batch: float,
        *,
        links_wait: bool = True,
    ) -> float:
        """The share of requests that miss the TTFT target under this load.

        Args:
            requests_per_second: Load of all engines together.
            engines: Numbers of prefill and of decode engines.
            decode_batch: Largest batch of the decode engines.
            links_wait: Whether transfers wait for each other.
        """
        prefill_engines, decode_engines = engines
        if self._pool.queue.utilization(requests_per_second, prefill_engines) >= 1:
            return 1.0
        waits: tuple[Wait, ...] | None = _AT_ONCE
        if links_wait and self.transfers.seconds:
            waits = link_waits(self.transfers, requests_per_second, *engines)
        if waits is None:
            return 1.0
        itl_seconds = self._itl_seconds(requests_per_second / decode_engines, decode_batch)
        late = 0.0
        for wait in waits:
            steps = first_steps_seconds(itl_seconds, self.transfers.seconds + wait.seconds)
            later_seconds = steps + wait.seconds
            late += wait.share * self._pool.late_share(
                requests_per_second, prefill_engines, later_seconds
            )
        return late

    def capacity(self, engines: tuple[int, int], decode_batch: float) -> PoolCapacity:
        """Capacity of the prefill engines if transfers never wait for each other."""
        most = engines[0] / self._pool.queue.service_seconds
        load = self.largest_load(most, engines, decode_batch, links_wait=False)
        used = load / most
        return PoolCapacity(load, "compute" if used >= _ALL_USED else "ttft", used, 0.0)

    def largest_load(
        self,
        most: float,
        engines: tuple[int, int],
        decode_batch: float,
        *,
        links_wait: bool = True,
    ) -> float:
        """The largest load, up to `most`, with no more late requests than allowed."""

        def holds(load: float) -> bool:
            late = self.late_share(load, engines, decode_batch, links_wait=links_wait)
            return late <= self._decode.targets.late_share

        return largest(holds, most)

    def _itl_seconds(self, requests_per_second: float, decode_batch: float) -> float:
        """Step time of a decode engine at this request rate."""
        if requests_per_second not in self._itl:
            self._itl[requests_per_second] = self._decode.itl_seconds_under(
                requests_per_second, decode_batch
            )
        return self._itl[requests_per_second]
