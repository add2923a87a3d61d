"""Planes to dense scales and back, on the CPU or a GPU."""
