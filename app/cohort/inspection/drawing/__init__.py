"""The graphs of a model as data for a web page: operators, values, and each node's provider.

`draw_model` reads a model's file without `onnx` and without its weights. A `DrawingProcess` does
this in a child process, for a server.
"""

from cohort.inspection.drawing.blocks import MIN_FOLDED, find_blocks
from cohort.inspection.drawing.process import DrawingProcess
from cohort.inspection.drawing.reading import DrawnModel, draw_model
from cohort.inspection.drawing.words import describe_shape

__all__ = [
    "MIN_FOLDED",
    "DrawingProcess",
    "DrawnModel",
    "describe_shape",
    "draw_model",
    "find_blocks",
]
