.DEFAULT_GOAL := help
.PHONY: help setup demo demo-topic-health test test-kafka chaos soak check conformance-continuous conformance-spark \
  chaos-streams chaos-topic-health bench-engine bench-kafka bench-log bench-spark bench-streams \
  bench-streams-spark bench-priority bench-topic-health format lock clean

BIN := .venv/bin
WORKERS ?= 2

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-20s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Make .venv from requirements.lock; instant when it is up to date
	@scripts/setup.sh

demo: setup ## Run the demonstration
	$(BIN)/python -m examples.demo $(ARGS)

demo-topic-health: setup ## Count valid and invalid messages by the second (ARGS="--influx URL")
	$(BIN)/python -m examples.topic_health.demo $(ARGS)

test: setup ## Run every test (WORKERS=2 processes; ARGS="-k word" to choose)
	$(BIN)/pytest --numprocesses $(WORKERS) --dist worksteal $(ARGS)

test-kafka: setup ## Run the tests that need a Kafka broker: THULAWA_KAFKA, or one that is started
	$(BIN)/pytest tests/brokers $(ARGS)

chaos: setup ## Kill drivers, workers and brokers at every point (ARGS="--rounds 3 --only driver")
	$(BIN)/python -m tests.chaos.kafka $(if $(JSON),--json) $(ARGS)

soak: setup ## Send a million records through Kafka and Spark with a kill every 20 s
	$(BIN)/python -m tests.chaos.kafka.soak $(if $(JSON),--json) $(ARGS)

check: setup ## Lint, formatting, types and import layers
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

conformance-spark: setup ## Run all conformance cases on Spark (SEED=0 cuts the batches)
	$(BIN)/python -m tests.conformance tests/conformance/cases/*.json --on spark \
	  --shuffle-batches $(or $(SEED),0)

conformance-continuous: setup ## Run all conformance cases on the continuous host (SEED=0)
	$(BIN)/python -m tests.conformance tests/conformance/cases/*.json --on continuous \
	  --shuffle-batches $(or $(SEED),0) $(ARGS)

chaos-streams: setup ## Kill a streams application 20 times, and compare with a model (SEED=0)
	$(BIN)/python -m tests.chaos --seed $(or $(SEED),0) $(if $(JSON),--json) $(ARGS)

chaos-topic-health: setup ## Kill counting instances at random; 1 M messages (ARGS="--on process --kafka")
	$(BIN)/python -m tests.health.chaos $(if $(JSON),--json) $(ARGS)

bench-engine: setup ## Measure the engine (JSON=1: one object per row)
	@$(BIN)/python -m benchmarks.engine --memory $(if $(JSON),--json) $(ARGS)

bench-kafka: setup ## Measure Thulawa, Kafka Streams and Parallel Consumer on one broker
	@$(BIN)/python -m benchmarks.kafka $(if $(JSON),--json) $(ARGS)

bench-log: setup ## Measure the embedded log (JSON=1: one object per row)
	@$(BIN)/python -m benchmarks.log $(if $(JSON),--json) $(ARGS)

bench-spark: setup ## Measure map_by_key in whole Spark queries (JSON=1: one object per row)
	@$(BIN)/python -m benchmarks.spark $(if $(JSON),--json) $(ARGS)

bench-streams: setup ## Measure stream programs in the test driver (JSON=1: one object per row)
	@$(BIN)/python -m benchmarks.streams $(if $(JSON),--json) $(ARGS)

bench-streams-spark: setup ## Measure stream programs on Spark (JSON=1: one object per row)
	@$(BIN)/python -m benchmarks.streams_spark $(if $(JSON),--json) $(ARGS)

bench-priority: setup ## Measure lanes under overload, beside none (ARGS=--spark: whole queries too)
	@$(BIN)/python -m benchmarks.priority $(if $(JSON),--json) $(ARGS)

bench-topic-health: setup ## Measure topic health beside Kafka Streams (JSON=1; ARGS="--quick")
	@$(BIN)/python -m benchmarks.topic_health $(if $(JSON),--json) $(ARGS)

format: setup ## Format the code and apply the safe fixes
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

lock: ## Write requirements.lock from pyproject.toml (UPGRADE=1: newest versions)
	scripts/lock.sh

clean: ## Remove .venv, caches and build output
	rm -rf .venv .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist
	find src tests benchmarks -name __pycache__ -prune -exec rm -rf {} +
