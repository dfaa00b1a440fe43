"""What a cluster did over a span of days: from Prometheus' history to a report for people."""
