"""The dashboards, drawn in five situations: `make pictures`."""
