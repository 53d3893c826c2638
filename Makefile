# Two commands matter: make demo, make test. Each sets up all it needs; the second time is quick.
PYTHON ?=
NICE ?=
# Processes that run tests at the same time: two of them have a deployment, and wait for it often.
WORKERS ?= 3
# Of the soak, in which they compute all the time.
SOAK_WORKERS ?= 2
# Of what `make soak` draws; say SEED=... to see the same again.
SEED ?= $(shell date +%s)
# `make soak MINUTES=20` begins nothing later than that; without it all is run, which takes hours.
MINUTES ?=
FAST := tests/core tests/callboard tests/serve_app tests/actors tests/test_tidy.py
BIN := .venv/bin
STAMP := .venv/.locked
PEERS := .peers/.locked
# Pytest keeps what it makes of each test file: else all workers make it anew, 10 s of CPU together.
unexport PYTHONDONTWRITEBYTECODE
# As they were typed, quotes and dollar signs included: the shell reads them as variables.
override DOC := $(value DOC)
override WORDS := $(value WORDS)
export DOC WORDS
DEMO_ARGS = $${DOC:+--doc "$$DOC"} $${WORDS:+--words "$$WORDS"}

.PHONY: venv peers demo cluster-demo cluster-smoke federation-demo test test-fast faults first-hour soak bench bench-quick lint style types usual format lock \
	peers-lock wheels clean

$(STAMP): requirements.lock pyproject.toml .ci/venv
	@PYTHON="$(PYTHON)" .ci/venv
	@touch $@

venv: $(STAMP)

# What `make bench` runs beside the service: DBOS and Restate, in a folder of their own.
$(PEERS): bench/peers/requirements.lock bench/peers/package-lock.json .ci/peers | $(STAMP)
	@.ci/peers
	@touch $@

peers: $(PEERS)

demo: $(STAMP)
	@$(BIN)/python -m callboard.cli demo $(DEMO_ARGS)

# A real `ray up` on hosts made of namespaces of this machine; needs root, else it says SKIPPED and,
# with CI=true, fails. The second is a part of the first, of at most 4 minutes.
cluster-demo: $(STAMP)
	@$(BIN)/python -m scripts.cluster_demo

cluster-smoke: $(STAMP)
	@$(BIN)/python -m scripts.cluster_demo --smoke

# Two regions on this machine, of which one does a part of the other's work and is ended then.
federation-demo: $(STAMP)
	@$(BIN)/python -m scripts.federation_demo

# Types are checked beside the first tests, which wait for the start of deployments.
test: style
	@$(MAKE) --no-print-directory -j2 types usual

usual: $(STAMP)
	$(NICE) $(BIN)/python -m pytest -n $(WORKERS) -m "not soak" --ignore=tests/faults

# Processes that are killed, frozen, drained or without Postgres, under load; part of `.ci/run`.
faults: $(STAMP)
	$(NICE) $(BIN)/python -m pytest -n $(WORKERS) -m "not soak" tests/faults

# The inner loop, at most 60 s on two cores: what needs neither Postgres nor a deployment.
test-fast: $(STAMP)
	$(NICE) $(BIN)/python -m pytest -n $(WORKERS) -m "not slow and not soak" $(FAST)

# The wheels in an empty environment, and the README's commands with them; part of `.ci/run`.
first-hour: $(STAMP)
	@$(BIN)/python -m scripts.first_hour

soak: $(STAMP)
	$(NICE) $(BIN)/python -m pytest -n $(SOAK_WORKERS) -m "soak or hypothesis" --hypothesis-seed=$(SEED) \
		$(if $(MINUTES),--minutes=$(MINUTES))

# Half an hour; `make bench BENCH_ARGS="--workloads chain3:bulk --systems callboard,restate"` measures less.
bench: $(STAMP) $(PEERS)
	$(BIN)/python -m bench.peers $(BENCH_ARGS)

# At most 3 minutes: one short round.
bench-quick: $(STAMP) $(PEERS)
	$(BIN)/python -m bench.peers --quick $(BENCH_ARGS)

lint: style types

style: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(STAMP)
	$(BIN)/python -m mypy

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Renews every pin of both wheels' requirements. No index address is written into the lock, and the
# light wheel, which the server's requires, is this checkout.
lock: $(STAMP)
	$(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --extra dev \
		--no-header --no-annotate --upgrade --quiet --no-emit-package callboard \
		pyproject.toml packaging/server/pyproject.toml -o requirements.lock

# Renews the peers' pins, which only `make bench` installs.
peers-lock: $(STAMP)
	$(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes \
		--no-header --no-annotate --upgrade --quiet \
		bench/peers/requirements.in -o bench/peers/requirements.lock
	cd bench/peers && npm install --package-lock-only --ignore-scripts --no-audit --no-fund \
		--omit-lockfile-registry-resolved --loglevel=error

# Both wheels, into dist/.
wheels: $(STAMP)
	$(BIN)/python -m hatchling build -t wheel -d dist
	cd packaging/server && ../../$(BIN)/python -m hatchling build -t wheel -d ../../dist

clean:
	rm -rf .venv .peers .mypy_cache .ruff_cache .pytest_cache .hypothesis dist
