# Each target sets up what it needs: `make demo` or `make test` on a fresh machine is all there is to do.
PYTHON ?= python3
BIN := .venv/bin
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup doctor demo test check format docs rules sim mutants scenarios-rewrite chaos bench package lock clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-18s %s\n", $$1, $$2}'

setup:  ## make .venv from requirements.lock, find Java, have the jars; at once when done before
	@$(PYTHON) app/setup

doctor:  ## say what this machine lacks, and how to mend it
	@$(PYTHON) app/setup --doctor

demo: setup  ## three nodes, Spark, 336 776 flights, a killed leader, and the proofs; ARGS=--keep to stay up
	@$(BIN)/commitlog demo $(ARGS)

test: setup  ## the test suite; ARGS="-k NAME" for a part of it
	@$(BIN)/python -m pytest -p no:cacheprovider -n 2 --durations=10 $(ARGS)

check: setup  ## ruff and mypy
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: setup  ## let ruff format everything
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs: setup  ## write docs/configuration.md and docs/tables.md from the docstrings of the code
	@$(BIN)/python docs/generate.py

rules: setup  ## the rules of app/RULES.md that no test proves yet
	@$(BIN)/python -m tests.rules

sim: setup  ## simulate clusters under faults, the full size; ARGS="--seed N" replays one
	@$(BIN)/commitlog sim $(or $(ARGS),--full)

mutants: setup  ## plant bugs, and show who notices them
	@$(BIN)/python -m tests.mutants

scenarios-rewrite: setup  ## write the scenario transcripts anew; read the diff afterwards
	@$(BIN)/python -m tests.scenarios.rewrite

chaos: setup  ## real processes under faults, a JSON line a family, an hour and a half; ARGS="--family NAME --scale 0.1"
	@$(BIN)/python -m tests.chaos $(ARGS)

bench: setup  ## appends a second through REST, one node after the other
	@$(BIN)/python -m tests.bench $(ARGS)

package: setup  ## dist/: what spark-submit needs; ARGS="--conf conf/spark.toml". Tells the command line
	@$(BIN)/python -m spark_jobs.package dist $(ARGS)

lock:  ## requirements.in -> requirements.lock (needs uv)
	@uv pip compile --universal --fork-strategy fewest --generate-hashes --python-version 3.11 \
	  --no-emit-index-url --no-header --quiet requirements.in --output-file requirements.lock

clean:  ## remove the environment, caches and the demo's data
	@rm -rf .venv .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info demo-data
