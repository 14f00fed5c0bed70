"""`cohort convert config.pbtxt`: convert Triton's configuration to Cohort's.

An `ensemble_scheduling` becomes a pipeline.yaml, the file of another ONNX model a config.yaml.
Fields without a counterpart are listed with advice (`left_out`).
"""
