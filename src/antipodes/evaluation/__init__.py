"""Evaluation of what a run has learned: features, protocols on them, scores and pictures.

names.py       the registry of protocols: name -> class (imports no torch)
protocol.py    the base class of protocols: needs, options, `run`
protocols/     one file for each protocol
subject.py     `Subject`: a run, or given features, with everything that protocols need; features are embedded once
compared.py    the embeddings that a policy compares over a whole dataset, and its decisions on them
linear.py      the linear probe
accuracy.py, clusters.py, thresholds.py: measures
scores.py      the scores that a run folder keeps
report.py      scores as tables and JSON
pictures.py, figures.py, maps.py, map_figures.py, tiles.py: pictures of a run
"""
