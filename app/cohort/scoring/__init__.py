"""Batch scoring: a model's outputs for each row of a file, in a file with both.

A file is read in slices (`sources`). The rows of a slice become requests of a `Runtime` (`rows`,
`scorer`), and its results a file (`writers`, `parts`). The files of all slices become one at the
end, so a run that was stopped continues after the slices that are done (`job`).
"""

from cohort.scoring.job import Progress, Task, check_kind, score_here
from cohort.scoring.remote_files import Local, at_hand

__all__ = ["Local", "Progress", "Task", "at_hand", "check_kind", "score_here"]
