"""What a cluster did over a span of days: a report from Prometheus' history."""
