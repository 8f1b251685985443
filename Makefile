# make demo and make test work on a fresh clone: they build .venv once, with the versions of constraints.txt.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
PIP = .venv/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test lint bench docs clean

demo: .venv/ready
	.venv/bin/antipodes demo

test: .venv/dev
	.venv/bin/python -m pytest --numprocesses 2

lint: .venv/dev
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

bench: .venv/bench
	set -e; for file in benchmarks/*.py; do echo "== $$file"; .venv/bin/python $$file; done

docs: .venv/docs
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict --quiet
	.venv/bin/python docs/links.py site

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

.venv/bench: .venv/dev
	$(PIP) --editable '.[bench]'
	touch $@

.venv/docs: .venv/ready
	$(PIP) --editable '.[docs]'
	touch $@

clean:
	rm -rf .venv
