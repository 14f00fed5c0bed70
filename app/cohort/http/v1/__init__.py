"""TensorFlow Serving's REST API: `/v1/models/…:predict`."""
