"""The convex solver of the post-hoc methods."""
