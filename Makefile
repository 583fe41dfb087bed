# Timevisor. `make help` lists what there is.
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
SHELL := /bin/bash -eo pipefail

CARGO ?= cargo
LAB    = .ci/program timevisor-lab
EXPERIMENTS = .ci/program timevisor-experiments
STEP   = .ci/step
# Built by `make programs`: static and optimized.
QUICK  = $(or $(CARGO_TARGET_DIR),target)/static/x86_64-unknown-linux-gnu/quick
DENY_VERSION = 0.20.2
FUZZ_VERSION = 0.13.2
KEEP ?=
TEST ?= test
SHARD ?=
SEEDS ?= 3
FIRST ?= 1
MINUTES ?= 10
NAME ?= list
SECONDS ?= 600
JOBS ?= 1
TARGET ?=
TRACES ?= $(wildcard ../shared/traces)

.PHONY: help demo test check test-all weekly deps lab fmt clippy unit python loom deny doc docs fuzz-check programs bench-read bench-elapsed bench-ntp-server bench-timelines bench-groups bench-sync bench-plan simulate contradictions bounds reservations schedules soak experiment arms fuzz soak-sync soak-migrate tools clean

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {split($$1, name, ":"); printf "  %-12s %s\n", name[1], $$2}' $(MAKEFILE_LIST)

demo: ## A stock guest reads this host's clock, side by side for 30 s (KEEP=1 leaves it running)
	@$(LAB) demo $(if $(KEEP),--keep)

check: fmt clippy unit loom deny doc fuzz-check docs ## The quick loop, without root: format, lints, unit tests, loom, import table, documentation
	@echo "check passed"

test: tools deps check python ## Before every push: check, the Python package, scenarios, and boots that show each promise once
	@$(MAKE) --no-print-directory simulate SEEDS=3
	@$(MAKE) --no-print-directory lab TEST=test
	@echo "all checks and lab tests passed"

test-all: deps ## Every other test, after `make test`: seeds 4 to 20 of each scenario, the rest of the lab; SHARD=1/2 runs one half of the lab
	@$(MAKE) --no-print-directory simulate FIRST=4 SEEDS=20
	@$(MAKE) --no-print-directory bounds
	@$(MAKE) --no-print-directory lab TEST=all

weekly: deps ## What takes hours: soaks, fuzzing, contradictions, benches, experiments, and the lab tests that say why they are weekly
	@$(MAKE) --no-print-directory lab TEST=weekly
	@$(MAKE) --no-print-directory contradictions reservations
	@$(MAKE) --no-print-directory bounds READINGS=1000000000
	@$(MAKE) --no-print-directory bench-read bench-elapsed bench-ntp-server bench-timelines bench-groups bench-sync bench-plan
	@$(MAKE) --no-print-directory soak soak-sync soak-migrate
	@$(MAKE) --no-print-directory fuzz
	@for name in $$($(EXPERIMENTS) list | awk '{print $$1}'); do $(MAKE) --no-print-directory experiment NAME=$$name; done

deps: ## Debian packages that tests need, installed if missing (as root)
	@$(STEP) "Debian packages" $(LAB) install

fmt:
	@$(STEP) "format" $(CARGO) fmt --all --check

clippy:
	@$(STEP) "clippy" $(CARGO) clippy --workspace --all-targets --quiet -- -D warnings

unit:
	@$(STEP) "unit tests" $(CARGO) test --workspace --quiet

python: ## The Python package: builds the wheel, installs it into a virtual environment below target/python, tests it
	@PYTHON=/usr/bin/python3 $(STEP) "the Python package" clients/python/test.sh -q

loom: ## The seqlock under the model checker, with and without each fence
	@RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom $(STEP) "loom" \
	  $(CARGO) test --quiet --profile loom -p timevisor-clock-page --lib seqlock

deny: ## Licences, and the table of which room may import which (deny.toml)
	@if ! command -v cargo-deny >/dev/null; then echo "cargo-deny is missing: make tools"; exit 1; fi
	@$(STEP) "import table and licences" $(CARGO) deny --log-level error check bans licenses sources

doc:
	@RUSTDOCFLAGS="-D warnings" $(STEP) "documentation of the code" $(CARGO) doc --workspace --no-deps --quiet

fuzz-check: ## The fuzz targets build
	@$(STEP) "fuzz targets" $(CARGO) check --quiet --locked --manifest-path fuzz/Cargo.toml --target-dir target/fuzz-check

docs: ## Documentation: links, commands with their options, keys, words (docs/check.py)
	@$(STEP) "the programs whose commands are documented" $(CARGO) build --quiet --workspace --bin timevisor --bin timevisord --bin timevisor-guest --bin timevisor-bus --bin timevisor-observe
	@$(STEP) "docs/check_test.py" python3 -B docs/check_test.py
	@$(STEP) "documentation" python3 -B docs/check.py

programs: ## The programs that the lab's guests and `make simulate` run
	@$(LAB) build

lab: ## Lab tests by name, family or tier: make lab TEST=clock-vmclock (make lab TEST=list); logs in target/lab/NAME
	@$(LAB) test $(TEST) $(if $(SHARD),--shard $(SHARD))

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

bench-groups: ## What groups cost: join to the first message, 1,000 members, a message beside plain Zenoh, a proposal
	$(CARGO) build --quiet --release -p timevisord -p timevisor-bus -p timevisor-bench-groups --bin timevisord --bin timevisor-bus --bin bench-groups
	target/release/bench-groups --check

bench-plan: ## Plans for a hundred tasks (timevisor reserve plan), best period and given, EDF and fixed priorities
	$(CARGO) build --quiet --release -p timevisor -p timevisor-benches --bin timevisor --bin bench-plan
	$(CARGO) run --quiet --release -p timevisor-benches --bin bench-plan -- --check

simulate: programs ## All scenarios/*.toml in simulated worlds with the seeds FIRST=1 to SEEDS=3, judged by their limits; results in target/results/simulate.json
	@mkdir -p target/results
	@$(STEP) "scenarios, seeds $(FIRST) to $(SEEDS)" \
	  $(QUICK)/timevisor simulate --seeds $(FIRST)..$(SEEDS) scenarios --results target/results/simulate.json

RUNS ?= 1000

contradictions: programs ## Failing assumptions in RUNS=1000 random worlds each: noticed in time? And false alarms of 100 honest days
	@mkdir -p target/results
	@$(STEP) "failing assumptions, $(RUNS) seeds each" $(QUICK)/timevisor simulate --seeds $(RUNS) --results target/results/contradictions.json \
	  scenarios/lie-1ppm.toml scenarios/lie-step-1ms.toml scenarios/wander-5x.toml scenarios/wander-5x-fixed.toml
	@$(STEP) "honest days" $(QUICK)/timevisor simulate --seeds 100 --results target/results/false-alarms.json scenarios/honest

READINGS ?= 10000000

bounds: programs ## Random worlds inside the assumptions, until READINGS=10000000 readings were judged: none with truth outside
	@mkdir -p target/results
	@$(STEP) "random worlds, $(READINGS) readings" $(QUICK)/check-bounds $(READINGS) 0 target/results/bounds.json

SCHEDULES ?= 100000

schedules: ## A group's members in SCHEDULES=100000 random schedules of loss, partition, crash and failing clocks: no silent disagreement
	@mkdir -p target/results
	@$(STEP) "random schedules" $(CARGO) run --quiet --profile quick -p timevisor-simulation --bin check-coordination -- \
	  $(SCHEDULES) 0 target/results/coordination.json

SETS ?= 100000
SEED ?= 0
EVERY ?= 16

reservations: ## Promises for SETS=100000 random task sets in reservations, against simulated SCHED_DEADLINE; least budgets of every EVERY=16th
	@mkdir -p target/results
	$(CARGO) run --quiet --release -p timevisor-simulation --bin check-reservations -- $(SETS) $(SEED) $(EVERY) target/results/reservations.json
	$(CARGO) run --quiet --release -p timevisor-simulation --bin check-reservations -- --vcpus $$(($(SETS) / 20)) $(SEED)

experiment: ## Published evaluations: make experiment NAME=quartzv-sync MINUTES=5 (NAME=list); docs/evaluation/
	@$(EXPERIMENTS) $(if $(filter list,$(NAME)),list,run $(NAME) $(if $(filter-out file default,$(origin MINUTES)),--minutes $(MINUTES)))

arms: ## Two robot arms carry a part while something goes wrong, on hosts and with guests: table, picture, animation; then, with MINUTES=30, all faults in turn
	@$(EXPERIMENTS) run arms
	@$(EXPERIMENTS) run arms-guests
	@$(if $(filter-out file default,$(origin MINUTES)),$(EXPERIMENTS) run arms-endure --minutes $(MINUTES))
	@$(if $(filter-out file default,$(origin MINUTES)),$(EXPERIMENTS) run arms-guests-endure --minutes $(MINUTES))

soak: ## Four guests against the host for MINUTES=10 (weekly)
	@$(LAB) soak --minutes $(MINUTES)

soak-sync: ## timevisord against a real chronyd's clock for MINUTES=30 (weekly)
	@$(LAB) soak-sync --minutes $(if $(filter-out 10,$(MINUTES)),$(MINUTES),30)

MOVES ?= 100

soak-migrate: ## A guest between two timevisords, MOVES=100 times by each delivery (weekly)
	@$(LAB) soak-migrate --moves $(MOVES)

fuzz: ## Fuzz every parser for SECONDS=600 of CPU each, or one: make fuzz TARGET=qmp (JOBS=2 at a time); fuzz/run.sh
	@command -v cargo-fuzz >/dev/null || $(CARGO) install --quiet --locked cargo-fuzz@$(FUZZ_VERSION)
	@SECONDS_EACH=$(SECONDS) JOBS=$(JOBS) fuzz/run.sh $(TARGET)

tools: ## Cargo tools that the checks need and that cargo itself does not bring
	@command -v cargo-deny >/dev/null || $(CARGO) install --quiet --debug --locked cargo-deny@$(DENY_VERSION)

include packaging/packages.mk

clean: ## Everything that was built or fetched
	$(CARGO) clean
