"""`cohort convert config.pbtxt`: Cohort's files made from Triton's file.

An `ensemble_scheduling` becomes a pipeline.yaml, any other ONNX model's file a config.yaml. Fields
without a counterpart are listed, each with advice (`left_out`).
"""
