"""What is installed beside the daemon: units, dashboards, rules, bridges."""
