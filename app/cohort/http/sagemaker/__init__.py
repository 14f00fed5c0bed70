"""SageMaker's multi-model routes: models are loaded, listed, invoked and unloaded by request."""
