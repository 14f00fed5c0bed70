"""External data that DVC keeps in the cache of its project, and links to from the version."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from app.errors import LoadFailed
from app.session import Opener, SessionOptions, open_session
from app.session.chains import PREFER
from tests import onnx_models
