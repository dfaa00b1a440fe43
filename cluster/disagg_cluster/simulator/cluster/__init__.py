"""Model of a cluster in virtual time: event queue, router, KV transfer."""
