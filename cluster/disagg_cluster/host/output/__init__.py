"""Output that never blocks: queued standard output, logs of workers and their rotation."""
