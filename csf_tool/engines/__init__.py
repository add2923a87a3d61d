"""Inference engines made to read CSF checkpoints: a package each, loaded inside its engine and nowhere else."""
