"""Steps of `cohort prepare` that add pre- and postprocessing to a model.

Each compares the result with the model before it, and with the server's preprocessing for the same
config.
"""

from cohort_prepare.grafting.grafted import Grafted
from cohort_prepare.grafting.image_input import add_image_input
from cohort_prepare.grafting.labels import add_labels
from cohort_prepare.grafting.tokenizer import add_tokenizer

__all__ = ["Grafted", "add_image_input", "add_labels", "add_tokenizer"]
