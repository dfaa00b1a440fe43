"""The rows of a page as metric families of the client library, to check our text against."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.utils import floatToGoString

from disagg_exporter.metrics.family import Family, Labels, MetricRows, MetricType
from disagg_exporter.metrics.render import rows_of
from disagg_exporter.metrics.table import FAMILIES
from disagg_exporter.model import Histogram, Snapshot


def render(snapshot: Snapshot | None, now_ns: int) -> Iterator[Metric]:
    """Yield the families of the page that `rows_of` describes."""
    return families_of(rows_of(snapshot, now_ns))


def families_of(rows: MetricRows) -> Iterator[Metric]:
    """Yield the families of a page in the order of the table; a family without rows is absent."""
    for family in FAMILIES:
        if samples := rows.samples.get(family.name):
            yield _metric(family, samples)
        elif histograms := rows.histograms.get(family.name):
            yield _histogram(family, histograms)


def _metric(family: Family, samples: dict[Labels, float]) -> Metric:
    metric: CounterMetricFamily | GaugeMetricFamily
    if family.kind is MetricType.COUNTER:
        metric = CounterMetricFamily(
            family.name, family.help, None, family.labels, None, family.unit
        )
    elif family.kind is MetricType.GAUGE:
        metric = GaugeMetricFamily(family.name, family.help, None, family.labels, family.unit)
    else:
        return _info(family, samples)
    for labels, value in samples.items():
        metric.add_metric([_utf8(label) for label in labels], value)
    return metric


def _histogram(family: Family, histograms: dict[Labels, Histogram]) -> Metric:
    metric = HistogramMetricFamily(family.name, family.help, None, None, family.labels, family.unit)
    for labels, histogram in histograms.items():
        bounds = (*map(floatToGoString, histogram.bounds), "+Inf")
        buckets = list(zip(bounds, histogram.counts, strict=True))
        metric.add_metric([_utf8(label) for label in labels], buckets, histogram.sum)
    return metric


def _info(family: Family, samples: dict[Labels, float]) -> Metric:
    # InfoMetricFamily needs a mapping per row and hides the sample's name; a plain Metric of its
    # type takes the rows unchanged.
    metric = Metric(family.name.removesuffix("_info"), family.help, "info")
    for labels, value in samples.items():
        texts = map(_utf8, labels)
        metric.add_sample(family.name, dict(zip(family.labels, texts, strict=True)), value)
    return metric


def _utf8(text: str) -> str:
    # A name with a lone surrogate (from an odd file name) would make encoding the page fail.
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")
