"""Row of the Node dashboard: the other nodes of the cluster, each a row of cells over time."""

from __future__ import annotations

from grafana.builders.asks import Ask
from grafana.builders.board import UIDS, Row
from grafana.builders.timelines import heat

EACH_WAY = 10
"""How many of the busiest and of the least busy nodes of a role: more rows are not legible."""


def nodes() -> Row:
    """Node by time, by how busy each node is in each role."""
    busy = 'node_role_model_gpu:disagg_occupancy:rate5m{cluster=~"$cluster"}'
    # Ranked at the end of the time shown, so that the same nodes stay for all of it.
    at_end = busy + " @ end()"
    chosen = f"topk by (role) ({EACH_WAY}, {at_end}) or bottomk by (role) ({EACH_WAY}, {at_end})"
    labels = "cluster, node, role, model_name, gpu_name"
    return "Nodes over time", [
        heat(
            "How busy each node is",
            "Share of observed GPU time in which the GPUs of each node and role worked, 5 minutes: "
            "dark rests, white works all the time. Good: rows of one role alike. A dark row among "
            "bright ones gets no requests; a bright one among dark ones gets too many. The "
            f"{EACH_WAY} busiest and {EACH_WAY} least busy nodes of each role, at the end of the "
            "time shown. Click a cell for its node.",
            [
                Ask(
                    f"max by (node, role) ({busy} and on ({labels}) ({chosen}))",
                    "{{node}} {{role}}",
                )
            ],
            link=(
                "Open this node",
                f"/d/{UIDS['node']}?var-node=${{__field.labels.node}}&${{__url_time_range}}",
            ),
            height=7,
            runbooks=("DisaggNodeOffMedian",),
        )
    ]
