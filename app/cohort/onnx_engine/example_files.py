"""Example inputs from a `.npz` file of `numpy.savez` next to a model. Nothing is unpickled."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile

from cohort.codec.npy import fit_array, read_npy
from cohort.errors import InvalidInput, quoted
from cohort.tensors import Arrays, TensorSpec, check_names

MAX_FILE_BYTES = 256 << 20
"""Uncompressed size limit of all arrays: a zip of a few kilobytes may hold any amount of zeros."""


def read_example(path: Path, specs: Sequence[TensorSpec]) -> Arrays:
    """Read the inputs in a file, by name. Raises InvalidInput.

    Shapes are not checked; `tensors.check_inputs` does that.
    """
    name = quoted(path.name)
    try:
        with ZipFile(path) as file:
            members = {one.filename.removesuffix(".npy"): one for one in file.infolist()}
            check_names(specs, members)
            if (size := sum(one.file_size for one in members.values())) > MAX_FILE_BYTES:
                raise InvalidInput(
                    f"{name} holds {size >> 20:,} MiB; at most {MAX_FILE_BYTES >> 20} are read"
                )
            if any(one.compress_type not in (ZIP_STORED, ZIP_DEFLATED) for one in members.values()):
                raise BadZipFile("its compression is not one that numpy uses")
            return {
                spec.name: fit_array(spec, read_npy(file.read(members[spec.name])))
                for spec in specs
            }
    except FileNotFoundError:
        raise InvalidInput(f"{name} not found: put it into the version's folder") from None
    except OSError as error:
        raise InvalidInput(f"{name} cannot be read: {error.strerror or error}") from error
    except (BadZipFile, EOFError, RuntimeError, ValueError, zlib.error) as error:
        raise InvalidInput(f"{name} is not a .npz file, or is truncated: {error}") from error
