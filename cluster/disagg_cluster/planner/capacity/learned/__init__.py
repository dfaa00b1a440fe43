"""Step times learned by the engines of a cluster, pooled over engines of a kind."""
