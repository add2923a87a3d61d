"""Figures of what the commands report, drawn with matplotlib (the extra `plot`); a module each."""
