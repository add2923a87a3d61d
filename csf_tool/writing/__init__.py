"""Writing shards into a destination, and what becomes of files that are there or are no longer needed."""
