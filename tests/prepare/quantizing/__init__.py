"""Smaller weights."""
