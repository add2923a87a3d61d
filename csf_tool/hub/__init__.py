"""Checkpoints on the Hugging Face Hub: names, repositories, ranges of bytes."""
