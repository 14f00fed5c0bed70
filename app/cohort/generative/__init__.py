"""Language models: text in, tokens out, many answers in one run."""
