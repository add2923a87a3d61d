"""What `verify` checks, and what it concludes."""
