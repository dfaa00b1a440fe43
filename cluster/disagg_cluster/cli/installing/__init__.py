"""The commands that write for others: an installation, rules, dashboards, the engines' plugin."""
