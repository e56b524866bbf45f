# Each target sets up what it needs: `make demo` and `make test` work on a fresh machine.
PYTHON ?= python3
BIN := .venv/bin
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help s3 setup doctor demo test check format docs docs-site deploy-check rules sim mutants scenarios-rewrite chaos bench wheel package sbom lock clean

help:  ## show this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-18s %s\n", $$1, $$2}'

setup:  ## create .venv from requirements.lock, find Java, download the jars; skipped when complete
	@$(PYTHON) app/setup

doctor:  ## check this machine, and show a remedy for each problem
	@$(PYTHON) app/setup --doctor

demo: setup  ## run three nodes, Spark, 336,776 flights, a killed leader, and the proofs; ARGS=--keep keeps them running
	@$(BIN)/commitlog demo $(ARGS)

# Bytecode is kept: with PYTHONDONTWRITEBYTECODE, as in many containers, each process would compile all modules.
# The tests read the files of the repository as UTF-8, also in a locale that is not.
test: setup  ## run the test suite; ARGS="-k NAME" selects tests
	@PYTHONDONTWRITEBYTECODE= PYTHONUTF8=1 $(BIN)/python -m pytest -p no:cacheprovider -n 3 --durations=10 -rR $(ARGS)

check: setup  ## run ruff and mypy
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: setup  ## format all files with ruff
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs: setup  ## generate docs/configuration.md, docs/tables.md, and the marked tables of other pages from the code
	@$(BIN)/python docs/generate.py

docs-site:  ## build the documentation for /docs/ of the nodes (needs the network once, for mkdocs-material)
	@test -x .cache/mkdocs/bin/mkdocs || (echo "docs-site: installing mkdocs-material into .cache/mkdocs, once" && \
	  $(PYTHON) -m venv .cache/mkdocs && .cache/mkdocs/bin/pip install --quiet mkdocs-material)
	@NO_MKDOCS_2_WARNING=1 .cache/mkdocs/bin/mkdocs build --quiet --strict

deploy-check: setup  ## validate conf/deploy by schemas (needs Go and the network once) and by promtool (Debian: prometheus)
	@test -x .cache/deploy/bin/compose || (GOBIN=$(CURDIR)/.cache/deploy/bin go install \
	  github.com/compose-spec/compose-go/v2/cmd@v2.16.2 && mv .cache/deploy/bin/cmd .cache/deploy/bin/compose)
	@test -x .cache/deploy/bin/kubernetes-validate || (test -x .cache/deploy/bin/python || $(PYTHON) -m venv .cache/deploy; \
	  .cache/deploy/bin/pip install --quiet 'kubernetes-validate==1.37.*')
	@$(BIN)/python -m pytest -p no:cacheprovider -rs tests/integration/operations/test_deployment.py $(ARGS)

rules: setup  ## list the rules of app/RULES.md that no test proves
	@$(BIN)/python -m tests.rules

sim: setup  ## simulate clusters under faults, full size; ARGS="--seed N" replays one seed
	@$(BIN)/commitlog sim $(or $(ARGS),--full)

s3: setup  ## test tables in S3 on a real server: fetches versitygw and the jars of s3a (needs Go, Maven and the network once)
	@test -x .cache/s3/bin/versitygw || GOBIN=$(CURDIR)/.cache/s3/bin go install github.com/versity/versitygw/cmd/versitygw@v1.8.0
	@test -d .cache/s3/jars || mvn -q -B -f tests/support/s3/pom.xml dependency:copy-dependencies -DincludeScope=runtime \
	  -DexcludeGroupIds=io.netty,org.slf4j,commons-logging,commons-codec,com.fasterxml.jackson.core \
	  -DoutputDirectory=$(CURDIR)/.cache/s3/jars
	@$(BIN)/python -m pytest -p no:cacheprovider tests/spark/tables/test_object_store.py $(ARGS)

mutants: setup  ## plant bugs, and list the tests that detect them
	@$(BIN)/python -m tests.mutants

scenarios-rewrite: setup  ## rewrite the scenario transcripts; review the diff afterwards
	@$(BIN)/python -m tests.scenarios.rewrite

chaos: setup  ## run real processes under faults for 90 minutes, one JSON line per family; ARGS="--family NAME --scale 0.1"
	@$(BIN)/python -m tests.chaos $(ARGS)

bench: setup  ## run the benchmarks of tests/bench/README.md (needs Go); ARGS="table" selects one
	@$(BIN)/python -m tests.bench $(ARGS)

wheel: setup docs-site  ## build dist/commitlog-VERSION-py3-none-any.whl, with the pages of /docs/, and print how to install it
	@rm -f dist/commitlog-*.whl
	@$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --no-index --wheel-dir dist .
	@echo "pip install '$$(ls $(CURDIR)/dist/commitlog-*.whl)[client]'   # other extras: arrow, schemas, server, spark, notebooks"

package: setup  ## build dist/ for spark-submit and print the command line; ARGS="--conf conf/spark.toml"
	@$(BIN)/python -m spark_jobs.package dist $(ARGS)

sbom: setup  ## write dist/sbom.json: all packages of .venv with versions and licences (CycloneDX); AUDIT=1 runs pip-audit too
	@test -x .cache/sbom/bin/cyclonedx-py || $(PYTHON) -m venv .cache/sbom
	@.cache/sbom/bin/pip install --quiet 'cyclonedx-bom==7.*' $(if $(AUDIT),pip-audit)
	@mkdir -p dist && .cache/sbom/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible \
	  --output-file dist/sbom.json $(BIN)/python
	@$(if $(AUDIT),.cache/sbom/bin/pip-audit --disable-pip --no-deps -r requirements.lock)

lock:  ## compile requirements.in to requirements.lock (needs uv)
	@uv pip compile --universal --fork-strategy fewest --generate-hashes --python-version 3.11 \
	  --no-emit-index-url --no-header --quiet requirements.in --output-file requirements.lock

clean:  ## remove the environment, caches and the demo's data
	@rm -rf .venv .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info demo-data
