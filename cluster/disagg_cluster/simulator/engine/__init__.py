"""Model of one engine: hardware roofline, scheduler, KV cache, steps."""
