"""Measure the differences between two models in the same way for every command.

`cases` has rows to run models with, `generated` makes some with `graph_hints`, `pairing` makes
outputs comparable, and `differences` measures them. `accuracy` counts correct answers, and
`timing` runs models alternately. The commands decide what differences mean.
"""
