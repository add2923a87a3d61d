"""The JSON documents: what each field means, and how results become them."""
