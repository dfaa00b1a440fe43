"""What steps take as the engines of a cluster have learned it, pooled over their like."""
