"""Running jobs together: in threads, in forked workers, or on a cluster."""
