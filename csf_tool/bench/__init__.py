"""The measurements of `csf-tool bench`: decoding and encoding on the GPU, beside what bounds them. No printing."""
