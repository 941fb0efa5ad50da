# make, or make help, lists the targets.
SHELL := /bin/bash
.DEFAULT_GOAL := help

# A Go that was unpacked where its instructions say is found without a PATH.
export PATH := $(PATH):/usr/local/go/bin
export CGO_ENABLED := 0
# Everything is compiled as it is shipped, so once, and whatever the directory is called.
export GOFLAGS := $(GOFLAGS) -trimpath
# Where tests find the programs that they start.
export CARREL_TEST_BUILD := $(CURDIR)/.cache/built

MODULE  := github.com/carrel-dev/carrel
PREFIX  ?= /usr
DESTDIR ?=
VERSION := $(shell git describe --tags --match 'v*' --dirty 2>/dev/null)
LDFLAGS := -s -w $(if $(VERSION),-X $(MODULE)/internal/build.version=$(VERSION))
# The commit is stamped into the binaries where git can be asked for it.
VCS     := $(shell git rev-parse HEAD >/dev/null 2>&1 && echo -buildvcs=auto || echo -buildvcs=false)

FUZZTIME  ?= 5s
SOAKTIME  ?= 1h
GOLANGCI  := .cache/golangci-lint
LINT_MOD  := -modfile=tools/lint/go.mod
TOOL      := go tool -modfile=tools/go.mod
SUM       := go run ./test/testsum
# Tests that bring a whole carrel up, or attack one, mostly wait: two packages run at a time.
WHOLE     := $(patsubst %,./%/...,$(wildcard test/script test/root test/crash test/programs))
# Where goroutines share memory. Those with rights run as they are shipped too, the others of
# these under the race detector alone.
TWICE     := broker|daemon|executor
RACE      := ./internal/api/... ./internal/archive/... ./internal/audit ./internal/authn ./internal/broker ./internal/cli ./internal/daemon \
             ./internal/executor ./internal/asking ./internal/flow ./internal/gate ./internal/jsonrpc ./internal/pollfd ./internal/runtime/... ./internal/store ./sdk/go
# Of those, as they are shipped: what repeats for an ordinary user all that ran under the race
# detector, and what goes over every byte of a file in one goroutine.
SHIPPED   := -run '^(TestAsOrdinaryUser|TestAsWrittenOnEveryByte|TestReadFindsItsPlace)$$' ./internal/archive ./internal/audit

.PHONY: help build test test-root soak test-vm fuzz policy-report lint generate tidy-check bench bench-quick demo tour man install uninstall clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## build carrel, carreld, carrel-broker, carrel-executor and carrel-archive into bin/
	@scripts/prerequisites build
	go build $(VCS) -ldflags '$(LDFLAGS)' -o bin/ ./cmd/...

test: ## run every test that this host can run; as root: all
	@scripts/prerequisites test
	@scripts/prerequisites programs
	@$(SUM) unit -shuffle=on -timeout=5m $$(go list ./... | grep -vE '/test/(script|root|crash|programs)(/|$$)' | \
	    grep -vxF "$$(go list $(RACE) | grep -vE '/internal/($(TWICE))$$')") \
	  -- shipped -timeout=5m $(SHIPPED) \
	  -- race CGO_ENABLED=1 -race -shuffle=on -timeout=5m $(subst -run,-skip,$(wordlist 1,2,$(SHIPPED))) $(RACE) \
	  -- whole -p 2 -parallel=3 -count=1 -timeout=15m $(WHOLE)

test-root: ## run the tests that bring a whole carrel up, as root
	@scripts/prerequisites test
	@$(SUM) whole -p 2 -parallel=3 -count=1 -timeout=15m $(WHOLE)

soak: ## kill carrel at random for SOAKTIME (1h) while it works, and measure growth in full, as root
	@scripts/prerequisites test
	SOAKTIME=$(SOAKTIME) go test -v -count=1 -timeout=0 -run '^(TestSoak|TestGrowth)$$' ./test/crash

test-vm: ## run the tests that depend on the kernel in emulated guests: pure cgroup v2, pure v1
	@scripts/prerequisites build
	go run ./test/vm

fuzz: ## run each fuzz target for FUZZTIME (5s), or for a number of inputs (200x)
	@scripts/prerequisites build
	@scripts/fuzz $(FUZZTIME)

policy-report: ## print how well the policy judges the labelled corpora
	@scripts/prerequisites build
	@go run ./test/policyreport

lint: $(GOLANGCI) ## run the linters and the import lists
	$(GOLANGCI) run ./...
	go test ./test/deps

$(GOLANGCI): tools/lint/go.mod tools/lint/go.sum
	@scripts/prerequisites build
	@mkdir -p $(@D)
	go build $(LINT_MOD) -o $@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint

generate: ## write gen/ anew from proto/, NOTICE from what is linked, and the built-in policy as it is embedded
	@scripts/prerequisites build
	$(TOOL) buf lint
	$(TOOL) buf generate
	go generate ./internal/policy
	scripts/notice > NOTICE.new && mv NOTICE.new NOTICE

tidy-check: ## see that go.mod names what is used, and that the modules are those of go.sum
	go mod tidy -diff
	cd tools/man && go mod tidy -diff
	go mod verify

bench: ## measure carrel beside its peers (docs/benchmarks.md), as root
	@scripts/prerequisites build
	go run ./test/bench

bench-quick: ## the same with few rounds: to see a change, not to publish
	@scripts/prerequisites build
	go run ./test/bench -quick

demo: build ## show two workspaces at work, and what one cannot do to the other (root)
	@scripts/prerequisites demo
	@scripts/demo

tour: build ## record the tour of the README anew: docs/tour/tour.cast and tour.svg (root)
	go run ./test/tour

man: ## write the manual pages of the commands into bin/man/
	@scripts/prerequisites build
	@rm -rf bin/man
	cd tools/man && go run -ldflags '$(LDFLAGS)' . -dir ../../bin/man

install: build man ## install to PREFIX (/usr), as root; carrel looks for the others in /usr/libexec/carrel
	install -D -m 0755 bin/carrel $(DESTDIR)$(PREFIX)/bin/carrel
	install -D -m 0755 -t $(DESTDIR)$(PREFIX)/libexec/carrel bin/carreld bin/carrel-broker bin/carrel-executor bin/carrel-archive
	install -D -m 0644 -t $(DESTDIR)$(PREFIX)/share/man/man1 bin/man/*.1

uninstall: ## remove what install put there; data stays
	rm -f $(DESTDIR)$(PREFIX)/bin/carrel $(addprefix $(DESTDIR)$(PREFIX)/libexec/carrel/,carreld carrel-broker carrel-executor carrel-archive)
	rm -f $(DESTDIR)$(PREFIX)/share/man/man1/carrel.1 $(DESTDIR)$(PREFIX)/share/man/man1/carrel-*.1
	-rmdir $(DESTDIR)$(PREFIX)/libexec/carrel

clean: ## remove what was built, downloaded and measured here
	rm -rf bin .cache bench/out
