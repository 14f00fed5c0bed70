"""What connections have in common, whatever is spoken on them: addresses, TLS, pace, memory."""
