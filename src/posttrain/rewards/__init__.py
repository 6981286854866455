"""Verifiers and rewards."""
