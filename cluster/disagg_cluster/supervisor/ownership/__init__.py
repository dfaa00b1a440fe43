"""Which processes belong to a worker: by evidence, descent or control group."""
