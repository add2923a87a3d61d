"""The Python API that reads checkpoints: dense tensors, and stacks that stay compressed."""
