"""Speed of language models: Cohort beside other engines on models of the same shape and weights."""
