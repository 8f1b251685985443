"""Write constraints-hashed.txt from constraints.txt: every package with the digest that the index gives for its wheel.

Run it with the Python and on the system that the file is for, whenever constraints.txt changes:
python .github/hashes.py
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUILD = ("setuptools", "wheel")  # what builds the package itself
HEAD = """\
# What the CI of Python 3.11 on Linux (x86-64) installs, with the SHA-256 of every package; made by .github/hashes.py.
# The versions are those of constraints.txt. torch is not here: its CPU build and its build with CUDA have one version
# and different digests, so it is installed first, by its version alone.
"""


def line_of(requirement: str) -> str:
    """The requirement with its exact version and the digest of its wheel."""
    call = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--no-deps"]
    call += ["--only-binary", ":all:", "--report", "-", requirement]
    done = subprocess.run(call, capture_output=True, text=True, check=True)
    (found,) = json.loads(done.stdout)["install"]
    digest = found["download_info"]["archive_info"]["hashes"]["sha256"]
    name = requirement.partition("==")[0]
    return f"{name}=={found['metadata']['version']} --hash=sha256:{digest}"


if __name__ == "__main__":
    pinned = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] != "#"]
    wanted = [*(line for line in pinned if not line.startswith("torch==")), *BUILD]
    lines = sorted((line_of(each) for each in wanted), key=str.lower)
    (ROOT / "constraints-hashed.txt").write_text(HEAD + "\n".join(lines) + "\n")
