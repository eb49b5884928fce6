# make report   set up .venv from the lock (once) and build results/report.html
# make test     set up .venv and run all linters and tests
# make test-slurm    the tests on a real Slurm that they start (part of make test)
# make test-faults   the long fault test: twelve kills at random times
VENV := .venv
ACTIVATE := . $(VENV)/bin/activate

.PHONY: env report lint test test-slurm test-faults lock
.SILENT: env report lint test test-slurm test-faults lock

env:
	scripts/make_env.sh $(VENV)

report: env
	$(ACTIVATE) && snakemake --cores all results/report.html

lint: env
	$(ACTIVATE) && ruff check . && ruff format --check . && snakefmt --check . && mypy && snakemake --lint

test: env
	$(ACTIVATE) && $(MAKE) lint && pytest

test-slurm: env
	$(ACTIVATE) && pytest tests/test_slurm.py

test-faults: env
	$(ACTIVATE) && pytest --faults -s tests/test_faults.py -k random

lock: env
	$(ACTIVATE) && python scripts/lock.py
