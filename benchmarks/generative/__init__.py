"""Speed of language models: Cohort next to other engines, with the same shapes and weights."""
