"""Looking into checkpoints: sizes, planes, memory."""
