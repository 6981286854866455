"""Seats, games and leagues."""
