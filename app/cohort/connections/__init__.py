"""Common parts of connections of any protocol: addresses, TLS, pace, memory."""
