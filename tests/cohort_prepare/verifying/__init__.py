"""Comparing a model with its source."""
