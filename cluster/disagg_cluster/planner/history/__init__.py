"""The load of the past, from files and from any API that speaks as Prometheus does."""
