"""Why requests wait: each cause with what tells it apart, from the evidence of one model."""
