from __future__ import annotations

import subprocess
import sys

import pytest

AUDIT = """
import resource
import numpy as np
import antipodes
rng = np.random.default_rng(0)
words = ["".join(rng.choice(list("abcdefghij"), 5)) for _ in range(300)]
bases = [" ".join(rng.choice(words, 12)) for _ in range(300)]
texts = [f"{bases[row % 300]} {word}" for row, word in enumerate(rng.choice(words, 6000))]
vectors = rng.standard_normal((6000, 1024)).astype(np.float32)
antipodes.audit(texts[:100], encoder=vectors[:100])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
antipodes.audit(texts, encoder=vectors)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 / vectors.nbytes)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss has other units elsewhere")
def test_an_audit_of_texts_takes_memory_for_texts_and_not_for_pairs() -> None:
    """Twenty texts have most words in common, so that MinHash proposes ten times as many pairs as there are texts."""
    done = subprocess.run([sys.executable, "-c", AUDIT], capture_output=True, text=True, timeout=300, check=True)
    assert float(done.stdout) < 8  # times the memory of the vectors, which are normalised and searched in blocks
