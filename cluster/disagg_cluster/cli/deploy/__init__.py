"""Commands that write files: dashboards, rules, plugin, units."""
