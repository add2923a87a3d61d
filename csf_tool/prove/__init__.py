"""What the bytes of a checkpoint are proved to be."""
