"""What `compress` chooses, keeps and writes."""
