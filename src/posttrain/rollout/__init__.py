"""Engines and the runner that executes plans."""
