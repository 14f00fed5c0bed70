"""The models that come with Cohort, which need no inspection."""

BUNDLED = frozenset(
    {
        "99ff24c0c71a5bf9aac6bd6487ab7e907b8f3b706adc5d39b823497127866784",  # digits/1
        "bc8541124e731db7a8cf43d8b7e22539a8b4be915611eed7fb4f1329fc8a497f",  # digits/2
        "7b275a94250d377adbd95da7a4d5da27c3e4a4e024a854151e19b4ae70801bde",  # iris/1
    }
)
"""The SHA-256 of their files, in hex; tests/models/test_bundled.py compares them."""
