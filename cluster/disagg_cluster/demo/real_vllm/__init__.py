"""A real vLLM pair for the demo and the tests, on CPU."""
