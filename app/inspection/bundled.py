"""The models that come with Cohort, which need no inspection."""

BUNDLED = frozenset(
    {
        "6e93dbad596016950fd47024909f4e39e4f505373b63be7bf9dea899c43379a5",  # digits/1
        "037b424a54dc9c2ef80ff9f2e15cfad04372fa11b02f8a121e30db55601b090a",  # digits/2
        "7b275a94250d377adbd95da7a4d5da27c3e4a4e024a854151e19b4ae70801bde",  # iris/1
    }
)
"""The SHA-256 of their files, in hex; tests/models/test_bundled.py compares them."""
