"""Work on shards side by side: in threads, in copies of the process, or on a cluster."""
