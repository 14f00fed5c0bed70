"""How far two models are apart, measured in one way for every command.

`cases` has rows to run models with, `generated` makes some, which `graph_hints` knows more of;
`pairing` makes two answers comparable, `differences` measures them, `accuracy` counts right
answers, and `timing` has models take turns. Verdicts are the commands' own.
"""
