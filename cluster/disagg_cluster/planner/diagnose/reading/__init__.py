"""Where a diagnosis takes its series from: any API that speaks as Prometheus does."""
