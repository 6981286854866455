"""Doors for other libraries' scripts and environments."""
