"""The form of TensorFlow Serving: `/v1/models/…:predict`."""
