"""Evaluation of what a run has learned: features, protocols on them, scores and pictures.

scoring.py     `antipodes.evaluate`: the scores of a run, of a model of open_clip, or of features in files
subject.py     `Subject`: a run, or given features, with everything that protocols need; features are embedded once
features.py    features with labels, from files or embedded, and their split class by class
protocol.py    the registry of protocols, their base class (needs, options, `run`), and `score`
protocols/     the protocols
linear.py      the linear probe
accuracy.py    accuracies and average precision
compared.py    the embeddings that a policy compares over a whole dataset, its decisions and thresholds on them
scores.py      scores as a table, as JSON, and as the file that a run folder keeps
pictures.py    pictures of a run, drawn by figures.py and maps.py
"""
