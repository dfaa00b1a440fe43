"""Commands that write files for others: an installation, rules, dashboards, the engine plugin."""
