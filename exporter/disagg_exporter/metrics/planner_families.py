"""The families of the planner, one of which runs in a cluster: what it exports, and no node."""

from __future__ import annotations

from disagg_exporter.metrics.family import Data, Family

_MODEL = ("model_name", "engine_namespace")

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
           "then on. Whatever shows or scales to a number of GPUs takes it from here."),
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
)
