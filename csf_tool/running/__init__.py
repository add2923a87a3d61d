"""Running shards together: in threads, in copies of the process, or on a cluster."""
