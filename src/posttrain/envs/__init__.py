"""Environments: what answers a policy."""
