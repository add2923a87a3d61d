"""Decode and encode CSF scales on the GPU, with torch and Triton. No files."""
