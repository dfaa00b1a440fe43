"""What all dashboards are made of: queries, panels, colours, annotations."""
