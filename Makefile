# Fenceline: every task that people and CI run. `make help` lists them.
SHELL       := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS   += --no-print-directory

GO       ?= go
PG_MAJOR ?= 16
N        ?= 1
KEEP     ?=
BACKEND  ?= both
MAJORS   ?= 14,15,16,17,18
# How long soak and fuzz take (each fuzz target this long).
soak: FOR ?= 10m
fuzz: FOR ?= 60s
export PG_MAJOR

# Tools are pinned here and run with `go run`: nothing to install, the same everywhere.
GOLANGCI_LINT := $(GO) run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
GOFUMPT       := $(GO) run mvdan.cc/gofumpt@v0.12.0

# Runs a command beside one real PostgreSQL server, found or fetched (internal/pgserver).
WITH_POSTGRES := $(GO) run ./internal/pgserver/cmd/withpg --
TEST          := $(GO) test -race -timeout 10m
# Tests that take longest, and whose packages have others of the same kind: make test-long runs them (and make test-compat those through a pooler).
LONG          := ThroughAPoolerInTransactionMode|BehindATransactionModePooler|EveryQueryModeDecidesAlike|StressFindsEachMistake|BenchEndsWithItsRatios

.DEFAULT_GOAL := help

.PHONY: help
help: ## Show this list
	@printf 'Usage: make TARGET [VARIABLE=value]\n\n'
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@printf '\nVariables: N=5 repeats the demo, KEEP=1 leaves it running, PG_MAJOR=16 is the PostgreSQL that is used,\n           FOR=10m is how long the soak takes.\n'

.PHONY: build
build: ## Build lockd, sidecar, paysvc and the demos into bin/
	@mkdir -p bin
	@for program in lockd sidecar paysvc examples/payouts examples/payouts/fleet examples/payouts/replicas examples/anyservice; do \
		echo "building bin/$${program##*/} (the first time a minute or two for all, then a second)"; \
		$(GO) build -trimpath -o bin/ ./$$program; \
	done

.PHONY: demo
demo: deps build ## Run the experiment: money is paid twice without the sidecar, never with it
	@bin/payouts --bin bin --repeat $(N) $(if $(KEEP),--keep)

.PHONY: demo-anyservice
demo-anyservice: build ## Put the sidecar before nginx, with its marks in a file: a late writer overwrites a file, then is refused
	@scripts/deps nginx curl
	@bin/anyservice --bin bin

.PHONY: demo-all
demo-all: deps build ## Run the experiment in all four set-ups and with each guard alone; one table
	@bin/payouts --bin bin --all --repeat $(N)

.PHONY: demo-replicas
demo-replicas: deps build ## Let an old request stall inside one of two replicas: with order: admissions it lands last, with order: effects never (N repeats)
	@bin/replicas --bin bin --repeat $(N)

.PHONY: fleet
fleet: deps build ## Let twelve workers pay 2 000 payouts while they are killed and paused, in three set-ups (N repeats)
	@bin/fleet --bin bin --repeat $(N)

.PHONY: test
test: deps ## Run every test that fits ten minutes, on real servers, with the race detector
	@scripts/deps pgbouncer
	@$(GO) test -run 'Interleaving|Model' ./sidecar/gate
	@$(WITH_POSTGRES) $(TEST) -skip '$(LONG)' ./...

.PHONY: test-unit
test-unit: ## Run the tests that need no server (packages whose tests don't import internal/pgserver)
	@$(TEST) $$($(GO) list -f '{{.ImportPath}} {{join .TestImports " "}} {{join .XTestImports " "}}' ./... \
		| grep -v 'fenceline/internal/pgserver' | cut -d ' ' -f 1)

.PHONY: test-long
test-long: test ## Run everything, every schedule and many kills of the sidecar, the soak and the twenty repeats of the experiments included
	@scripts/deps nginx
	@$(WITH_POSTGRES) $(TEST) -count=1 -run '$(LONG)' ./lockd/bench ./lockd/pgstore ./sidecar/bench ./sidecar/mark/pgmark
	@FENCELINE_MODEL=all $(GO) test -count=1 -v -run TestEveryInterleavingKeepsTheOrderOfEffects ./sidecar/gate
	@FENCELINE_KILLS=100 $(TEST) -count=1 -run 'TestMarksInAFileNeverGoBackWhenTheProcessIsKilled|TestEffectsBehindAFileStayInOrderWhenTheProcessIsKilled' ./sidecar
	@FENCELINE_SCHEDULES=all $(TEST) -count=1 -v -run TestKillsAndCutsBetweenEachTwoStepsBreakNothing ./sidecar
	@FENCELINE_STRESS=3000 $(GO) test -count=1 -timeout 15m -v -run TestStressFindsEachMistakeInTheStatementsAndNoneInOurs ./sidecar/mark/pgmark
	@$(MAKE) test-standby
	@if [ "$$(id -u)" = 0 ]; then $(MAKE) test-disk-full; else \
		echo 'NOT RUN: the tests of full disks. They mount a small file system, which needs root: sudo make test-disk-full' >&2; fi
	@$(MAKE) soak
	@$(MAKE) fleet N=3
	@$(MAKE) demo-all N=20
	@$(MAKE) demo-replicas N=20

.PHONY: test-standby
test-standby: ## Put a standby in the place of the daemons' databases
	@$(TEST) -tags long -count=1 -v -run ReplacedByAStandby ./lockd ./paysvc ./sidecar

.PHONY: test-disk-full
test-disk-full: ## Have the daemons' databases fill their disks: small file systems that the tests mount, as root
	@$(TEST) -tags long -count=1 -v -run 'OnAFullDisk|FillsItsDisk' ./lockd ./paysvc ./sidecar

.PHONY: test-compat
test-compat: deps ## Run the stores' suites on PostgreSQL 14 to 18 and through PgBouncer; print a table (MAJORS=14,18 for some)
	@scripts/deps pgbouncer
	@$(GO) run ./internal/compat --majors $(MAJORS)

.PHONY: evidence
evidence: deps ## The same, and write docs/evidence.json: which gates ran where with which result; what didn't run is a blocker
	@scripts/deps pgbouncer
	@$(GO) run ./internal/compat --evidence docs/evidence.json

.PHONY: soak
soak: deps build ## Check lockd's answers while its processes are killed and its connections cut (FOR=10m BACKEND=both)
	@$(GO) run ./lockd/robustness/soak --lockd bin/lockd --for $(FOR) --backend $(BACKEND)

.PHONY: fuzz
fuzz: ## Run every fuzz target for a while each (FOR=60s)
	@scripts/fuzz $(FOR)

.PHONY: bench
bench: deps build ## Measure the sidecar beside a bare proxy, nginx, and nginx with auth_request and a statement a request (PROFILE=FOLDER for CPU profiles)
	@scripts/deps nginx
	@$(GO) run ./sidecar/bench --sidecar bin/sidecar $(if $(PROFILE),--profile $(abspath $(PROFILE)))

.PHONY: bench-lockd
bench-lockd: deps build ## Measure lockd beside etcd's Mutex and bare SQL, side by side (PROFILE=FILE for lockd's CPU profile)
	@$(GO) run ./lockd/bench --lockd bin/lockd $(if $(PROFILE),--profile $(PROFILE))

.PHONY: lint
lint: ## Run vet, the linter and the formatter's check; go.mod must be tidy
	@echo "go mod tidy -diff"; $(GO) mod tidy -diff
	@echo "go vet"; $(GO) vet -tags long ./...
	@echo "golangci-lint (the first run builds it, about two minutes)"; $(GOLANGCI_LINT) run ./...

.PHONY: docs
docs: ## Write docs/configuration.md anew from the reference configuration
	@FENCELINE_UPDATE_DOCS=1 $(GO) test -count=1 -run TestConfigurationDocumentIsUpToDate ./sidecar/config

.PHONY: catalog
catalog: ## Write the descriptions of the schemas anew (migrations/testdata/catalog), after a new migration
	@FENCELINE_UPDATE_CATALOG=1 $(WITH_POSTGRES) $(GO) test -count=1 -run TestSchemaIsTheDescribedOne ./migrations

.PHONY: fmt
fmt: ## Format the code (gofumpt)
	@$(GOFUMPT) -w $$(git ls-files '*.go')

.PHONY: deps
deps: ## Install the system packages that the targets need (as root), or print the command
	@scripts/deps

.PHONY: clean
clean: ## Remove what was built; the cache of fetched servers stays
	@rm -rf bin
