"""A model's file, read without running it: metadata, nodes and what their attributes say.

`protobuf` reads the fields of messages, and what a file says of its model. `graphs` reads the nodes
of its graphs and functions; `constants` the tensors and attributes in them, weights left out.
"""
