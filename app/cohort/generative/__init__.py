"""Language models: engines that answer with text, token by token."""
