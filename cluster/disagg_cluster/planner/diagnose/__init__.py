"""Diagnosis of bottlenecks before the first token: from exported series to evidence to findings."""
