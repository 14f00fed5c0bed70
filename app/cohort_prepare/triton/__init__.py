"""`cohort convert config.pbtxt`: what Triton's file says of a model, in Cohort's files.

An `ensemble_scheduling` becomes a pipeline.yaml, any other ONNX model's file a config.yaml. What
has no counterpart is named, with what to do (`left_out`).
"""
