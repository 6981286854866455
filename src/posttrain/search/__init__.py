"""Search at test time."""
