from __future__ import annotations

import numpy as np

from antipodes.auditing.pair_columns import Pair, PairColumns

PAIRS = [
    Pair(0, 3, 0.9, 0.5, "near duplicate"),
    Pair(1, 2, 1.0, 1.0, "exact duplicate", "different", "near duplicate"),
    Pair(2, 4, 0.6, 0.4, "false negative", "skip"),
    Pair(4, 5, 0.8, 0.7, "near duplicate"),
]


def test_pairs_come_back_as_they_went_in() -> None:
    table = PairColumns.of(PAIRS)
    assert list(table) == PAIRS
    assert [table[place] for place in range(len(table))] == PAIRS
    assert list(table[1:3]) == PAIRS[1:3]
    assert list(table.rows()) == [(pair.a, pair.b) for pair in PAIRS]
    assert table.column("found").tolist() == [pair.found for pair in PAIRS]
    assert list(PairColumns.of([])) == []


def test_kinds_and_decisions_are_looked_up_in_columns() -> None:
    table = PairColumns.of(PAIRS)
    assert list(table.of_kinds(["near duplicate"])) == [PAIRS[0], PAIRS[3]]
    assert list(table.decided) == PAIRS[1:3]
    kinds = {kind: places.tolist() for kind, places in table.kinds().items()}
    assert list(kinds.items()) == [("near duplicate", [0, 3]), ("exact duplicate", [1]), ("false negative", [2])]


def test_tables_with_other_words_are_joined_and_changed() -> None:
    first, second = PairColumns.of(PAIRS[:2]), PairColumns.of_kind("leak", [7], [8], [0.25], [0.125])
    assert list(first.joined(second)) == [*PAIRS[:2], Pair(7, 8, 0.25, 0.125, "leak")]
    other = Pair(2, 4, 0.6, 0.4, "same by review", "same", "false negative")
    assert list(PairColumns.of(PAIRS).changed({2: other, 0: PAIRS[3]})) == [PAIRS[3], PAIRS[1], other, PAIRS[3]]
    assert list(PairColumns.of(PAIRS).changed({})) == PAIRS


def test_a_pair_takes_35_bytes() -> None:
    count = 1000
    table = PairColumns.of_kind("near duplicate", *np.ones((2, count), np.int64), *np.ones((2, count)))
    columns = (table.a, table.b, table.similarity, table.threshold, table.codes)
    assert sum(column.nbytes for column in columns) == 35 * count
