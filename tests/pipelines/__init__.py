"""Graphs of models."""
