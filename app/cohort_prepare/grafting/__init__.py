"""Steps of `cohort prepare` that graft onto a model what callers would do around it.

Each checks the whole against the model before it, and against what the server's own config makes of
the same input.
"""

from cohort_prepare.grafting.grafted import Grafted
from cohort_prepare.grafting.image_input import add_image_input
from cohort_prepare.grafting.labels import add_labels
from cohort_prepare.grafting.tokenizer import add_tokenizer

__all__ = ["Grafted", "add_image_input", "add_labels", "add_tokenizer"]
