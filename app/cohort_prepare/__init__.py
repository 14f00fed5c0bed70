"""Prepare models for the server: convert, verify, optimize, quantize and publish.

Only commands import this package; a serving process never does. This file is empty because
`cohort_prepare.frameworks` runs in environments that have little more than a framework.
"""
