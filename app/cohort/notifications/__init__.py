"""Webhooks to other programs, and their signatures."""
