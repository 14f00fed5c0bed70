"""Transforms: an operator's Python code around a model, `transform: module:Class` in its config.

The class has `before(request)`, `after(outputs)` or both. `before` converts a client's request to
the model's inputs, and `after` converts the model's outputs to the response. Each version runs it
in a separate process (`child`), so a crash, leak or endless loop does not harm others (`process`).

The package exports nothing, so that the child imports little; import from the modules.
"""
