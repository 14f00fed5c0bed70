"""A model's way to the server: convert, verify, optimize, quantize, publish.

Only commands import this; a serving process never does. Here is nothing, since the modules of
`cohort_prepare.frameworks` run in environments where little more than a framework is installed.
"""
