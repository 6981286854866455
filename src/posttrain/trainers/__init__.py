"""The loop, the learner, schedules and checkpoints."""
