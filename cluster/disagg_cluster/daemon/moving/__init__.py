"""Workers that change their role: looked at, moved, and routed, step by step."""
