"""Commands that inspect a node: phases, doctor, report."""
