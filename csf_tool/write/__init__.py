"""Writing another checkpoint: expand, compress, convert."""
