"""Row of the Cluster dashboard: rates, durations and lengths of the chosen models' requests."""

from __future__ import annotations

from grafana.builders.cluster.queries import N
from grafana.builders.panels.board import Row
from grafana.builders.panels.charts import lines
from grafana.builders.panels.frame import QUARTER
from grafana.builders.panels.palette import BLUE, GREEN, ORANGE, PINK, RED, SPREAD, TEAL
from grafana.builders.panels.queries import Ask

_MODEL = "cluster, engine_namespace, model_name"


def requests() -> Row:
    """Rates, failures, durations and lengths, each from the best source of a model."""
    arrivals, ends = "disagg_request_arrivals_total", "disagg_request_ends_total"
    prompts, outputs = "disagg_request_prompt_tokens", "disagg_request_output_tokens"
    durations = "disagg_request_duration_seconds_bucket"
    failed = _best(ends, 'reason=~"error|abort"', "reason")
    return "Requests of model $model", [
        lines(
            "Requests a second",
            "Requests that arrive, end and are rejected; counted by frontends or routers if there "
            "are any, else by the engines where requests enter. Bad: more arrive than end for "
            "minutes; a queue is growing.",
            [
                Ask(f"sum ({_best(arrivals)})", "arrive"),
                Ask(f"sum ({_best(ends)})", "end"),
                Ask(
                    f"sum ({_best('disagg_request_rejections_total', counts=arrivals)})", "refused"
                ),
            ],
            unit="reqps",
            decimals=2,
            width=QUARTER,
            filled=0,
            colours={"arrive": TEAL, "end": GREEN, "refused": RED},
            none="no engine, router or frontend counts the requests of these models",
        ),
        lines(
            "Error rate",
            "Share of requests that ended with an error or were aborted by their users, 5 "
            "minutes. Good: no line, or 0.",
            [
                Ask(
                    f"sum by (reason) ({failed}) / scalar(sum ({_best(ends)}) > 0)",
                    "{{reason}}",
                )
            ],
            unit="percentunit",
            decimals=1,
            width=QUARTER,
            at_least=0.05,
            filled=0,
            colours={"error": RED, "abort": PINK},
            none="no request ended in this time range",
        ),
        lines(
            "Request duration, end to end (E2E)",
            "Time from a request's arrival to its end, 5 minutes. It depends on output length: "
            "judge delays by the first and next tokens above.",
            [
                Ask(
                    f"histogram_quantile({share}, sum by (le) ({_best(durations, '', 'le')}))", name
                )
                for share, name in ((0.5, "p50"), (0.95, "p95"), (0.99, "p99"))
            ],
            unit="s",
            width=QUARTER,
            filled=0,
            colours=SPREAD,
            none="needs a frontend or router that reports it, or both pools on one node",
        ),
        lines(
            "Prompt and output lengths",
            "Mean tokens of the requests that ended, cached prompt tokens included, 5 minutes. "
            "Longer prompts need prefill GPUs, longer outputs need decode GPUs.",
            [
                Ask(
                    f"sum ({_best(f'{family}_sum', counts=f'{family}_count')})"
                    f" / (sum ({_best(f'{family}_count')}) > 0)",
                    name,
                )
                for family, name in ((prompts, "prompt"), (outputs, "output"))
            ],
            width=QUARTER,
            filled=0,
            colours={"prompt": BLUE, "output": ORANGE},
            none="no source reports the lengths of these models' requests",
        ),
    ]


def _best(family: str, matchers: str = "", label: str = "", counts: str = "") -> str:
    """The rate of a family by model and `label`, from the best source that each model has.

    That is the first that counts any now, as in the recording rules: one that counts none is
    silent, or not on these users' path. Whether it does is told by `counts`, the family itself if
    empty, without `matchers`: a reason that the frontend never reported must not be filled in from
    a router. A model of which none counts any shows the 0 of whichever is there.
    """
    by = f"sum by ({', '.join(filter(None, (_MODEL, label)))})"
    more = f", {matchers}" if matchers else ""

    def told(source: str, of: str = family, more: str = "") -> str:
        return f'rate({of}{{{N}{more}, source=~"{source}"}}[5m])'

    def counting(source: str) -> str:
        some = f"sum by ({_MODEL}) ({told(source, counts or family)}) > 0"
        return f"({told(source)} and on ({_MODEL}) {some})" if counts else f"({some})"

    def better(*sources: str) -> str:
        return "".join(f" unless on ({_MODEL}) {counting(each)}" for each in sources)

    frontend, router = (f"{by} ({told(each, more=more)})" for each in ("frontend", "router"))
    return (
        " or ".join(
            (
                f"{frontend} and on ({_MODEL}) {counting('frontend')}",
                f"{router} and on ({_MODEL}) {counting('router')}{better('frontend')}",
                f"{by} ({told('engine|pools', more=more)}){better('frontend', 'router')}",
            )
        )
        + f" or on ({_MODEL}) 0 * {by} ({told('frontend|router', more=more)})"
    )
