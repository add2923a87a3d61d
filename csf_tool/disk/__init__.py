"""Files on this machine, safetensors headers and JSON. Nothing here knows of planes."""
