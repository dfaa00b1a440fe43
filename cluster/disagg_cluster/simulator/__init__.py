"""A simulated cluster in virtual time: engines, GPUs, KV transfer, router, load and faults.

Pure and seeded: no clock, no thread, no I/O. `Simulation.events` yields what real nodes would have
reported, in order of time; `drive` feeds it to a ledger.
"""
