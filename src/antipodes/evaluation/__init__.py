"""Evaluation of what a run has learned: features, then protocols on them, then a report.

names.py       the registry of protocols: name -> class (imports no torch)
protocol.py    what a protocol is: its needs, its options, `run`
protocols/     a file for each
subject.py     what protocols look at: a run with its features, embedded once
towers.py      the features of a dataset under one of a method's encoders
judged.py      what a policy sees of a dataset, and its decisions, without learning from them
linear.py      the linear probe;  accuracy.py, clusters.py, ranking.py: what is measured
scores.py      what a run folder keeps of it
report.py      table and JSON
"""
