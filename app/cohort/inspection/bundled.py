"""Digests of the models shipped with Cohort, which need no inspection."""

BUNDLED = frozenset(
    {
        "6dc284083a73e50397bee43e72e8d71f062f5c36ec826910dea17679d4fdb6e3",  # digits/1
        "396e2573b6e07c71362973bb7cdd061683a0a74367e7fea8b4bd4629c7c24247",  # digits/2
        "a89bf8eae519523dac0ba83e04695e0733080c07b2c4f5328fce9b6feeea3e7d",  # iris/1
    }
)
"""SHA-256 digests of the model files, in hex; tests/models/test_bundled.py checks them."""
