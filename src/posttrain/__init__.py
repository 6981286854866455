"""Reinforcement learning of language models: methods composed from parts, one loop."""
