"""Verification and identity of checkpoints."""
