"""Evidence of an engine's role: options, environment, labels, page, traffic."""
