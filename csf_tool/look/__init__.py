"""What a checkpoint holds: sizes, planes, memory."""
