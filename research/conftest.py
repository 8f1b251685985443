"""Let tests import `research`, `tests`, and the scripts of this folder by their names, as they import each other."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
sys.path.append(str(HERE))  # last: `tests` is the folder at the top

from tests.conftest import two_ranks  # noqa: E402, F401
