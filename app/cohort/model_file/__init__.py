"""Read a model's file without running it: metadata, nodes and their attributes.

`protobuf` reads the fields of messages. `graphs` reads the nodes of the model's graphs and
functions. `constants` reads the tensors and attributes in them, without the weights.
"""
