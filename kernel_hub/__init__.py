"""The package of csf_tool's decode for the Hugging Face kernel hub."""
