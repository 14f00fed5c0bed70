"""Checks that the project's English is plain: `make lint`.

`passages` finds the text in a file, `sentences` divides it, `rules` finds what is not plain.
`words.yaml` lists the banned phrases, and `exceptions.yaml` the sentences that keep one.
"""
