"""Sources of tasks, chat rendering, model files, stored groups."""
