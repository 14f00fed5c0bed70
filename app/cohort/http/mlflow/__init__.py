"""The form of MLflow and SageMaker: `POST /invocations`, `GET /ping`."""
