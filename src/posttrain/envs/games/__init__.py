"""Games with simple rules: small environments to learn on and to test with."""
