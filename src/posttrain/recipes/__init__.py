"""Complete runs."""
