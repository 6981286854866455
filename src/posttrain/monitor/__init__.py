"""Events, sinks, metrics and reports."""
