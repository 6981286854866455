"""Fit, evaluate, rollout, rescore, replay: where trainer, engine and sinks meet."""
