"""Results to tables, JSON documents and lines on a terminal. Nothing here computes."""
