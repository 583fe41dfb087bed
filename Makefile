# Timevisor. `make help` lists what there is.
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
SHELL := /bin/bash -eo pipefail

CARGO ?= cargo
LAB    = $(CARGO) run --quiet -p timevisor-lab --
DENY_VERSION = 0.20.2
KEEP ?=
TEST ?= all
MINUTES ?= 10

.PHONY: help demo test check deps lab fmt clippy unit loom deny doc bench-read soak tools clean

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## A stock guest reads this host's clock, side by side for 30 s (KEEP=1 leaves it running)
	@$(LAB) demo $(if $(KEEP),--keep)

test: tools deps check lab ## Everything: the quick checks, then the lab with its real boots
	@echo "all checks and lab tests passed"

check: deps fmt clippy unit loom deny doc ## The quick loop: format, lints, unit tests, loom, import table, docs

deps: ## Debian packages that tests need, installed if missing (as root)
	@$(LAB) install

fmt:
	$(CARGO) fmt --all --check

clippy:
	$(CARGO) clippy --workspace --all-targets --quiet -- -D warnings

unit:
	$(CARGO) test --workspace --quiet

loom: ## The seqlock under the model checker, with and without each fence
	RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom $(CARGO) test --quiet --release -p timevisor-clock-page --lib seqlock

deny: ## Licences, and the table of which room may import which (deny.toml)
	@if ! command -v cargo-deny >/dev/null; then echo "cargo-deny is missing: make tools"; exit 1; fi
	$(CARGO) deny --log-level error check bans licenses sources

doc:
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --quiet

lab: ## The lab tests, or one: make lab TEST=clock-vmclock (make lab TEST=list); logs in target/lab/NAME
	@$(LAB) test $(TEST)

bench-read: ## Read latency: one run, one table, ratios to rdtsc and to clock_gettime
	$(CARGO) run --quiet --release -p timevisor-benches --bin bench-read -- --check

soak: ## Four guests against the host for MINUTES=10; not part of `make test`
	@$(LAB) soak --minutes $(MINUTES)

tools: ## Cargo tools that the checks need and that cargo itself does not bring
	@command -v cargo-deny >/dev/null || $(CARGO) install --quiet --locked cargo-deny@$(DENY_VERSION)

clean: ## Everything that was built or fetched
	$(CARGO) clean
