"""Python of an operator's around a model: `transform: module:Class` in its config.

The class has `before(request)`, which makes the model's inputs of what a caller sent, or
`after(outputs)`, which makes the answer of the model's outputs, or both. It runs in a process of
its own for each version (`child`), which may crash, leak or loop without harm to others
(`process`).

What a serving process uses is imported from the modules: the child imports little.
"""
