"""Parts a method is composed of."""
