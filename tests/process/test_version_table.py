"""Cells in tables of versions."""

from __future__ import annotations

from cohort.process.version_table import MAX_SPECS, Footnotes, spec_cell
from cohort.tensors import TensorSpec


def test_the_first_of_many_tensors_are_shown() -> None:
    """A pipeline may have an input for each column of a table."""
    specs = [TensorSpec(f"x{number}", "FP32", ("N", 1)) for number in range(300)]
    lines = spec_cell(specs).plain.splitlines()
    assert lines[0] == "x0 FP32 [N, 1]"
    assert lines[-1] == f"and {300 - MAX_SPECS} more"
    assert len(lines) == MAX_SPECS + 1


def test_a_text_has_one_number_wherever_it_is_needed() -> None:
    """A cell may need several numbers, or none at all."""
    notes = Footnotes()
    assert notes.mark("cpu", "no GPU").plain == "cpu (1)"
    assert notes.mark("off", "no gain", "no GPU").plain == "off (2) (1)"
    assert notes.mark("READY", "").plain == "READY"
    assert [line.plain for line in notes.lines()] == ["(1) no GPU", "(2) no gain"]
