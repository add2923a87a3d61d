"""The public functions that do what commands do, and return what their JSON documents say."""
