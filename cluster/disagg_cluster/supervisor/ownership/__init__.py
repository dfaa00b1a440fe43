"""Which processes are a worker's: by what is seen of them, descent or control group."""
