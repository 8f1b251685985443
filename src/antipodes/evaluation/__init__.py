"""Evaluation of a frozen encoder: features, then protocols on them, then a report.

features.py    embed a dataset, split what was embedded
linear.py      linear probe
knn.py         weighted nearest neighbours
protocols.py   the registry: name -> scores
transfer.py    other datasets to probe the features on
scores.py      what a run folder keeps of it
names.py       the registry's names and options (imports no torch)
report.py      table and JSON
"""
