"""The MLflow and SageMaker API: `POST /invocations`, `GET /ping`."""
