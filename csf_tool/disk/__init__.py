"""Files on this machine, and what safetensors and JSON are: nothing here knows of planes."""
