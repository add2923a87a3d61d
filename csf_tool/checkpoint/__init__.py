"""Files to tensors and planes, and back to files. No decoding."""
