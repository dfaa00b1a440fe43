"""A look at a node: phases, doctor, report."""
