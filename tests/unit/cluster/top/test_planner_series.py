"""What a planner says of bottlenecks and moves, as its series in a Prometheus tell."""

from __future__ import annotations

from disagg_cluster.top.readings.planner_series import advised, bottlenecks
from disagg_cluster.top.screen.sections import planned
from disagg_cluster.top.view.planned import bottleneck_rows
from disagg_exporter.engine_pages.exposition.lines import Sample
from support import top_looks as looks

BLAMED = {"node": "n", "engine": "e", "model_name": "m", "role": "prefill", "cause": "slow_gpu"}


def verdicts(*told: tuple[dict[str, str], float]) -> looks.Rows:
    """The series of verdicts with these labels and costs."""
    labels = [{**BLAMED, **own} for own, _ in told]
    return {
        "disagg_bottleneck": [Sample(each, 0.9) for each in labels],
        "disagg_bottleneck_ttft_cost_seconds": [
            Sample(each, cost) for each, (_, cost) in zip(labels, told, strict=True)
        ],
        "disagg_bottleneck_action_info": [
            Sample({**each, "action": "replace_gpu"}, 1.0) for each in labels
        ],
    }


def test_verdicts_on_engines_of_one_name_in_two_clusters_have_each_their_cost() -> None:
    found = bottlenecks(verdicts(({"cluster": "east"}, 0.2), ({"cluster": "west"}, 5.0)))

    assert [each.ttft_cost_seconds for each in found] == [5.0, 0.2]


def test_what_two_planners_say_while_one_is_replaced_is_shown_once() -> None:
    pods = [{"instance": "planner-a"}, {"instance": "planner-b"}]
    move = {"model_name": "m", "node": "n", "worker": "w", "role": "prefill", "to_role": "decode"}

    assert len(bottlenecks(verdicts(*((pod, 0.2) for pod in pods)))) == 1
    moves = {"disagg_rebalance_advised_info": [Sample({**move, **pod}, 1.0) for pod in pods]}
    assert len(advised(moves)) == 1


def test_what_is_said_of_one_of_two_clusters_names_it() -> None:
    """Only the planner of east has a verdict and a move; a worker of west has the same name."""
    told = {"cluster": "east", "engine_namespace": "search"}
    rows = looks.a_node()
    for cluster in ("east", "west"):
        whose = {"cluster": cluster, "engine": "w", "role": "prefill", "node": f"{cluster}-n"}
        looks.add(rows, "disagg_gpu_assignment_info", 1, gpu="GPU-0", **whose)
    rows |= verdicts((told, 1.0))
    move = {"model_name": "m", "node": "n", "worker": "w", "role": "prefill", "to_role": "decode"}
    looks.add(rows, "disagg_rebalance_advised_info", 1, **told, **move)

    shown = ["".join(span.text for span in line) for line in planned(looks.viewed([(rows, 1.0)]))]

    assert shown[0].startswith("held back  east search/m: prefill engine e on n")
    assert shown[1] == "move       now: worker w on n from prefill to decode of east search/m"


def test_a_wait_before_the_engines_is_not_shown_as_a_pools() -> None:
    told = verdicts(({"node": "", "engine": "", "cause": "router_limit"}, 1.0))

    assert [row.whose for row in bottleneck_rows(bottlenecks(told))] == ["before the engines"]
