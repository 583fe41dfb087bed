# Timevisor. `make help` lists what there is.
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
SHELL := /bin/bash -eo pipefail

CARGO ?= cargo
LAB    = $(CARGO) run --quiet -p timevisor-lab --
DENY_VERSION = 0.20.2
FUZZ_VERSION = 0.13.2
KEEP ?=
TEST ?= all
MINUTES ?= 10
NAME ?= list
SECONDS ?= 600
JOBS ?= 1
TARGET ?=
TRACES ?= $(wildcard ../shared/traces)

.PHONY: help demo test check deps lab fmt clippy unit python loom deny doc bench-read bench-elapsed bench-ntp-server bench-timelines bench-sync bench-plan simulate contradictions reservations soak experiment fuzz soak-sync soak-migrate tools clean

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## A stock guest reads this host's clock, side by side for 30 s (KEEP=1 leaves it running)
	@$(CARGO) run -p timevisor-lab -- demo $(if $(KEEP),--keep)

test: tools deps check python lab ## Everything: the quick checks, the Python package, then the lab with its real boots
	@echo "all checks and lab tests passed"

check: deps fmt clippy unit python loom deny doc docs ## The quick loop: format, lints, unit tests, loom, import table, docs

deps: ## Debian packages that tests need, installed if missing (as root)
	@$(LAB) install

fmt:
	$(CARGO) fmt --all --check

clippy:
	$(CARGO) clippy --workspace --all-targets --quiet -- -D warnings

unit:
	$(CARGO) test --workspace --quiet

python: ## The Python package: builds the wheel, installs it into a virtual environment below target/python, tests it
	PYTHON=/usr/bin/python3 clients/python/test.sh -q

loom: ## The seqlock under the model checker, with and without each fence
	RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom $(CARGO) test --quiet --release -p timevisor-clock-page --lib seqlock

deny: ## Licences, and the table of which room may import which (deny.toml)
	@if ! command -v cargo-deny >/dev/null; then echo "cargo-deny is missing: make tools"; exit 1; fi
	$(CARGO) deny --log-level error check bans licenses sources

doc:
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --quiet

.PHONY: docs
docs: ## Documentation: links, commands with their options, keys, words (docs/check.py)
	python3 -B docs/check_test.py
	python3 -B docs/check.py

lab: ## The lab tests, or one: make lab TEST=clock-vmclock (make lab TEST=list); logs in target/lab/NAME
	@$(LAB) test $(TEST)

bench-elapsed: ## The elapsed clock: 10^8 reads over 10^4 moves between cores, and what a read takes over the counter
	$(CARGO) run --quiet --release -p timevisor-benches --bin bench-elapsed -- --check

bench-read: ## Read latency: one run, one table, ratios to rdtsc and to clock_gettime
	$(CARGO) run --quiet --release -p timevisor-benches --bin bench-read -- --check

bench-ntp-server: ## Requests that one core answers: timevisord's NTP server beside chronyd, in one run
	$(CARGO) build --quiet --release -p timevisord -p timevisor-benches --bin timevisord --bin bench-ntp-server
	$(CARGO) run --quiet --release -p timevisor-benches --bin bench-ntp-server -- --check

bench-timelines: ## What timelines cost: first qualified read, 1,000 members, publishing a page, lateness of waits
	$(CARGO) build --quiet --release -p timevisord -p timevisor-benches --bin timevisord --bin bench-timelines
	$(CARGO) run --quiet --release -p timevisor-benches --bin bench-timelines -- --check

bench-sync: ## Estimate and bounds over days with truth, beside RADclock, chrony, ClockBound (TRACES=dir; else simulated)
	$(CARGO) run --quiet --release -p timevisor-benches --bin bench-sync -- --check $(if $(TRACES),--traces $(TRACES))

bench-plan: ## Plans for a hundred tasks (timevisor reserve plan), best period and given, EDF and fixed priorities
	$(CARGO) build --quiet --release -p timevisor -p timevisor-benches --bin timevisor --bin bench-plan
	$(CARGO) run --quiet --release -p timevisor-benches --bin bench-plan -- --check

simulate: ## All scenarios/*.toml in simulated worlds, judged by their limits; results in target/results/simulate.json
	TIMEVISOR_COMMIT=$$(git rev-parse --short HEAD 2>/dev/null || echo unknown) \
	$(CARGO) run --quiet --release -p timevisor -- simulate scenarios --results target/results/simulate.json

RUNS ?= 1000

contradictions: ## Failing assumptions in RUNS=1000 random worlds each: noticed in time? And false alarms of 100 honest days
	@mkdir -p target/results
	$(CARGO) run --quiet --profile lab -p timevisor -- simulate --seeds $(RUNS) --results target/results/contradictions.json \
	  scenarios/lie-1ppm.toml scenarios/lie-step-1ms.toml scenarios/wander-5x.toml scenarios/wander-5x-fixed.toml
	$(CARGO) run --quiet --profile lab -p timevisor -- simulate --seeds 100 --results target/results/false-alarms.json scenarios/honest

SETS ?= 100000
SEED ?= 0
EVERY ?= 16

reservations: ## Promises for SETS=100000 random task sets in reservations, against simulated SCHED_DEADLINE; least budgets of every EVERY=16th
	@mkdir -p target/results
	$(CARGO) run --quiet --release -p timevisor-simulation --bin check-reservations -- $(SETS) $(SEED) $(EVERY) target/results/reservations.json

experiment: ## Published evaluations: make experiment NAME=quartzv-sync MINUTES=5 (NAME=list); docs/evaluation/
	@$(LAB) experiment $(NAME) $(if $(filter-out file default,$(origin MINUTES)),--minutes $(MINUTES))

soak: ## Four guests against the host for MINUTES=10; not part of `make test`
	@$(LAB) soak --minutes $(MINUTES)

soak-sync: ## timevisord against a real chronyd's clock for MINUTES=30; not part of `make test`
	@$(LAB) soak-sync --minutes $(if $(filter-out 10,$(MINUTES)),$(MINUTES),30)

MOVES ?= 100

soak-migrate: ## A guest between two timevisords, MOVES=100 times by each delivery; not part of `make test`
	@$(LAB) soak-migrate --moves $(MOVES)

fuzz: ## Fuzz every parser for SECONDS=600 of CPU each, or one: make fuzz TARGET=qmp (JOBS=2 at a time); fuzz/run.sh
	@command -v cargo-fuzz >/dev/null || $(CARGO) install --quiet --locked cargo-fuzz@$(FUZZ_VERSION)
	@SECONDS_EACH=$(SECONDS) JOBS=$(JOBS) fuzz/run.sh $(TARGET)

tools: ## Cargo tools that the checks need and that cargo itself does not bring
	@command -v cargo-deny >/dev/null || $(CARGO) install --quiet --locked cargo-deny@$(DENY_VERSION)

clean: ## Everything that was built or fetched
	$(CARGO) clean
