"""What `csf-tool bench` measures: decoding and encoding on the GPU, beside what bounds them. No printing."""
