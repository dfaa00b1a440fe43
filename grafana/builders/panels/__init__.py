"""The parts that all dashboards share: queries, panels, colours, annotations."""
