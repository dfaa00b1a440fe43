"""Why requests wait: each cause and the evidence that distinguishes it, for one model."""
