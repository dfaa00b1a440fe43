"""How a Dynamo worker writes what its engine does not (version 1.6.1).

Its page also carries the engine's own series, and then it is that engine's page. A mock prefill
worker has none (ai-dynamo/dynamo#8752). Requests in flight are no load: with a rendezvous of
prefill and decode an overloaded prefill fills them on the decode side.
"""

from __future__ import annotations

from disagg_exporter.engine_pages.engines.series import Adapter, Series
from disagg_exporter.model import Total

DYNAMO = Adapter(
    kind="dynamo",
    prefixes=("dynamo_component_",),
    series=(
        Series(Total.FINISHED_REQUESTS, ("requests_total",), "dynamo_endpoint", ("generate",)),
    ),
)
