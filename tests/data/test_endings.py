from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CODE = """
import sys
from antipodes.data.on_disk import dataset_at
found = dataset_at(sys.argv[1])
sys.exit(found != "antipodes.data.folder.Folder" or any(name in sys.modules for name in ("PIL", "torch")))
"""


def test_what_lies_at_a_path_is_found_without_pillow_and_torch(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").touch()
    subprocess.run([sys.executable, "-c", CODE, str(tmp_path)], check=True, timeout=120)
