"""Bytes to bytes: the two CSF codecs. No files, no torch."""
