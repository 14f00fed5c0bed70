"""The simple API: `POST /predict`."""
