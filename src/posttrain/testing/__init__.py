"""Case runner, conformance checks and tiny models for tests."""
