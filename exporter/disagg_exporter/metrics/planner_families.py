"""The families of the planner, which runs once per cluster and exports nothing of a node."""

from __future__ import annotations

from disagg_exporter.metrics.family import Data, Family

_MODEL = ("model_name", "engine_namespace")
_VERDICT = ("node", "engine", *_MODEL, "role", "cause")

# fmt: off
PLANNER_FAMILIES: tuple[Family, ...] = (
    Family("disagg_forecast_tokens_per_second", Data.PLANNER,
           (*_MODEL, "phase", "horizon", "quantile"),
           "Load of a phase in the step that lies so far ahead: with the probability of the "
           "quantile it stays below. Absent where it is undecided."),
    Family("disagg_forecast_trend_info", Data.PLANNER, (*_MODEL, "verdict"),
           "Which phase the work of the last six hours was of, and whether that shifts."),
    Family("disagg_plan_gpus", Data.PLANNER,
           (*_MODEL, "gpu_name", "role", "kind", "horizon", "quantile"),
           "GPUs for a role: those that are there now (kind current, without horizon), those that "
           "the load of a quantile so far ahead needs, and those that the plan recommends from "
           "then on. Dashboards and autoscalers use these numbers."),
    Family("disagg_plan_shortfall_gpus", Data.PLANNER,
           (*_MODEL, "gpu_name", "role", "horizon", "quantile"),
           "GPUs that are missing if nothing is done and the load is that of the quantile; 0 where "
           "there are enough."),
    Family("disagg_plan_idle_gpus", Data.PLANNER, (*_MODEL, "kind"),
           "GPUs held and not needed, in the mean of all futures and over the plan's horizon: if "
           "nothing is done (kind current), or if the plan is followed (kind recommended)."),
    Family("disagg_plan_wasted_gpus", Data.PLANNER, (*_MODEL, "role"),
           "GPUs that the load of the last seven days, or as far as it is known, did not need, in "
           "the mean, had those that are there now run all along. Made anew once an hour; absent "
           "where it is not known."),
    Family("disagg_plan_over_target_seconds", Data.PLANNER, (*_MODEL, "kind"),
           "Seconds of the plan's horizon with too few engines of some role for the targets, in "
           "the mean of all futures: if nothing is done (kind current), or if it is followed."),
    Family("disagg_plan_error_ratio", Data.PLANNER, (*_MODEL, "phase", "horizon"),
           "How far off own forecasts of the last day were: the sum of the median's absolute "
           "errors over the load that came. Until enough of them have come true, of forecasts "
           "made again from the history."),
    Family("disagg_plan_undecided", Data.PLANNER, (*_MODEL, "role", "horizon", "reason"),
           "1 where nothing is said of a role's load or GPUs so far ahead, with the reason; the "
           "planner's own page has it in words."),
    Family("disagg_bottleneck", Data.PLANNER, _VERDICT,
           "How sure it is, from 0 to 1, that this engine, or a role's whole pool where node and "
           "engine are empty, holds first tokens back now, and of this cause. Only verdicts that "
           "stand now: absent as soon as one does not. Scrape with honor_labels."),
    Family("disagg_bottleneck_ttft_cost_seconds", Data.PLANNER, _VERDICT,
           "What that adds to the mean time to first token of all requests of the model. Of a "
           "verdict on several engines each has the whole of it: take the maximum, not the sum."),
    Family("disagg_bottleneck_action_info", Data.PLANNER, (*_VERDICT, "action"),
           "What to do about it."),
    Family("disagg_bottlenecks", Data.PLANNER, _MODEL,
           "Verdicts that stand on a model now: 0 where nothing holds its first tokens back, "
           "absent where that is undecided."),
    Family("disagg_bottleneck_undecided", Data.PLANNER, (*_MODEL, "reason"),
           "1 where nothing is said of what holds a model's first tokens back, with the reason; "
           "the planner's own page has it in words."),
    Family("disagg_rebalance_mode_info", Data.PLANNER, ("mode",),
           "What the planner does about engines that should change their role: off, advise (say "
           "which) or act (have their daemon move them)."),
    Family("disagg_rebalance_advised_info", Data.PLANNER,
           ("node", "worker", *_MODEL, "role", "to_role"),
           "The worker that should change its role now, if any: moving it pays for itself. Node "
           "and worker are empty where no engine is known by name. Scrape with honor_labels."),
    Family("disagg_rebalance_gain_seconds", Data.PLANNER, _MODEL,
           "By how much the moves that are advised shorten the time over target within the "
           "horizon, in the mean of all futures; below 0 where they only make the shortage less. "
           "Absent where none is advised."),
    Family("disagg_rebalance_move_cost_seconds", Data.PLANNER, ("source",),
           "How long the engine of a move is assumed to serve no requests: as the last moves were "
           "measured (source measured), or as the planner file says or assumes (assumed)."),
    Family("disagg_rebalance_moves_total", Data.PLANNER, (*_MODEL, "outcome"),
           "Moves that were begun in mode act and have ended, by how: done, failed (also taken "
           "back), refused."),
    Family("disagg_rebalance_over_target_seconds_total", Data.PLANNER, (*_MODEL, "split"),
           "Seconds in which a split had too few engines of some role for the load that came, by "
           "the capacities of the plan: the one that was (split actual), and the one that would "
           "have been had all advice been followed, or in mode act had nothing been moved (split "
           "shadow)."),
    Family("disagg_rebalance_shadow_moves_total", Data.PLANNER, _MODEL,
           "Moves that following all advice would have made."),
    Family("disagg_planner_build_info", Data.PLANNER, ("version",),
           "Which disagg-node the planner is. It has no disagg_build_info, by which nodes are "
           "counted."),
)
