"""Which engine holds prefill back, and why: exported series to evidence, evidence to verdicts."""
