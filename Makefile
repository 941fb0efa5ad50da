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
# The day of the release, for the manual pages.
DATE    := $(shell git log -1 --format=%cs 2>/dev/null || date -r CHANGELOG.md +%F)
LDFLAGS := -s -w $(if $(VERSION),-X $(MODULE)/internal/base/build.version=$(VERSION))
# The commit is stamped into the binaries where git can be asked for it.
VCS     := $(shell git rev-parse HEAD >/dev/null 2>&1 && echo -buildvcs=auto || echo -buildvcs=false)

FUZZTIME  ?= 5s
SOAKTIME  ?= 1h
GOLANGCI  := .cache/golangci-lint
LINT_MOD  := -modfile=tools/lint/go.mod
TOOL      := go tool -modfile=tools/go.mod
GOTESTSUM := .cache/gotestsum
GROUPS    := GOTESTSUM=$(CURDIR)/$(GOTESTSUM) scripts/test
# Tests wait more than they work: of whole carrels two packages run at a time, of the others three or four.
WHOLE     := $(patsubst %,./%/...,$(wildcard test/script test/root test/crash test/programs))
# Where goroutines share memory. Daemon and executor run as they are shipped too, the others of these under the
# race detector alone: the broker runs as it is shipped in the guests, and with whole carrels.
TWICE     := daemon|boundary/executor
# The longest comes first.
RACE      := ./internal/daemon/compose ./internal/surface/api/... ./internal/files/archive/... ./internal/state/audit ./internal/surface/authn ./internal/boundary/broker ./internal/cli ./internal/daemon ./internal/egress/... \
             ./internal/surface/e2b ./internal/boundary/executor ./internal/service/approvals ./internal/gate ./internal/wire/jsonrpc ./internal/linux/pollfd ./internal/boundary/runtime/... ./internal/state/store ./sdk/go \
             ./internal/agent/loop ./internal/agent/hosts/fleet ./internal/agent/hosts/jobs ./internal/agent/llm/... ./internal/agent/hosts/steps
# Of those, as they are shipped: what repeats for an ordinary user all that ran under the race
# detector, and what goes over every byte of a file, or every lie of a corpus, in one goroutine.
SHIPPED   := '^(TestAsOrdinaryUser|TestAsWrittenOnEveryByte|TestReadFindsItsPlace|TestLies)$$' ./internal/files/archive ./internal/state/audit \
             ./internal/daemon/compose

.PHONY: help build test test-root soak test-vm test-units fuzz policy-report lint generate breaking baseline wheel tidy-check bench bench-quick demo tour man share install packages uninstall clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## build carrel and the programs that it starts into bin/
	@scripts/prerequisites build
	go build $(VCS) -ldflags '$(LDFLAGS)' -o bin/ ./cmd/...

test: $(GOTESTSUM) ## run every test that this host can run; as root: all
	@scripts/prerequisites test
	@scripts/prerequisites programs
	@$(GROUPS) unit -p=4 -shuffle=on -timeout=30m $$(go list ./... | grep -vE '/test/(script|root|crash|programs)(/|$$)' | \
	    grep -vxF "$$(go list $(RACE) | grep -vE '/internal/($(TWICE))$$')") \
	  -- shipped -timeout=30m -run=$(SHIPPED) \
	  -- race CGO_ENABLED=1 -race -p=3 -shuffle=on -timeout=30m -skip=$(firstword $(SHIPPED)) $(RACE) \
	  -- whole -p=2 -parallel=3 -count=1 -timeout=30m $(WHOLE)

test-root: $(GOTESTSUM) ## run the tests that bring a whole carrel up, as root
	@scripts/prerequisites test
	@$(GROUPS) whole -p=2 -parallel=3 -count=1 -timeout=30m $(WHOLE)

$(GOTESTSUM): tools/go.mod tools/go.sum
	@scripts/prerequisites build
	@mkdir -p $(@D)
	go build -modfile=tools/go.mod -o $@ gotest.tools/gotestsum

soak: ## kill carrel at random for SOAKTIME (1h) while it works, comparing all after each round; measure growth; as root
	@scripts/prerequisites test
	SOAKTIME=$(SOAKTIME) go test -v -count=1 -timeout=0 -run '^(TestSoak|TestGrowth)$$' ./test/crash

test-vm: ## run the tests that depend on the kernel in emulated guests: pure cgroup v2, pure v1
	@scripts/prerequisites build
	go run ./test/vm

test-units: ## install, upgrade and remove the packages in an emulated guest with systemd
	@scripts/prerequisites build
	go run ./test/vm -cgroup systemd

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

generate: ## write anew: gen/, the messages of sdk/ and docs/reference from proto/, NOTICE from what is linked, the policy as embedded
	@scripts/prerequisites build
	$(TOOL) buf lint
	$(TOOL) buf generate
	scripts/sdk
	go generate ./internal/policy/rules
	scripts/notice > NOTICE.new && mv NOTICE.new NOTICE

breaking: ## see that proto/ breaks no client of the schema in proto/baseline.binpb
	@scripts/prerequisites build
	$(TOOL) buf breaking --against proto/baseline.binpb

baseline: breaking ## at a release: have what proto/ says now be what later schemas are compared with
	$(TOOL) buf build --exclude-source-info -o proto/baseline.binpb

wheel: ## build the wheel of sdk/python into bin/python/, if Python's setuptools are here
	@scripts/wheel

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

man: ## write the manual pages into bin/man/
	@scripts/prerequisites build
	@rm -rf bin/man
	cd tools/man && $(HOST) go run -ldflags '$(LDFLAGS)' . -dir ../../bin/man -date $(DATE)

# What runs here to be generated from, whatever the programs are built for.
HOST := GOOS= GOARCH=
share: man ## write what is installed beside the programs into bin/share/
	@rm -rf bin/share && mkdir -p bin/share
	$(HOST) go run ./cmd/carreld --print-sample > bin/share/carreld.yaml
	for shell in bash zsh fish; do $(HOST) go run ./cmd/carrel-cli completion $$shell > bin/share/carrel.$$shell || exit; done
	for unit in packaging/systemd/*; do sed 's|=/usr/|=$(PREFIX)/|' $$unit > bin/share/$${unit##*/} || exit; done

SHARE := $(DESTDIR)$(PREFIX)/share
LIB   := $(DESTDIR)$(PREFIX)/lib
UNITS := $(notdir $(wildcard packaging/systemd/*))

install: build share ## install to PREFIX (/usr), as root; carrel looks for the others in /usr/libexec/carrel
	install -D -m 0755 bin/carrel $(DESTDIR)$(PREFIX)/bin/carrel
	install -D -m 0755 -t $(DESTDIR)$(PREFIX)/libexec/carrel bin/carrel-cli bin/carreld bin/carrel-broker bin/carrel-executor bin/carrel-archive bin/carrel-egress bin/carrel-agent bin/carrel-hostrun
	install -D -m 0644 -t $(SHARE)/man/man1 bin/man/*.1
	install -D -m 0644 -t $(SHARE)/man/man8 bin/man/*.8
	install -D -m 0644 bin/share/carrel.bash $(SHARE)/bash-completion/completions/carrel
	install -D -m 0644 bin/share/carrel.zsh $(SHARE)/zsh/site-functions/_carrel
	install -D -m 0644 bin/share/carrel.fish $(SHARE)/fish/vendor_completions.d/carrel.fish
	install -D -m 0644 -t $(SHARE)/doc/carrel bin/share/carreld.yaml
	install -D -m 0644 -t $(LIB)/systemd/system $(addprefix bin/share/,$(UNITS))
	install -D -m 0644 packaging/sysusers/carrel.conf $(LIB)/sysusers.d/carrel.conf
	install -D -m 0644 packaging/tmpfiles/carrel.conf $(LIB)/tmpfiles.d/carrel.conf

uninstall: ## remove what install put there; data stays
	rm -f $(DESTDIR)$(PREFIX)/bin/carrel $(addprefix $(DESTDIR)$(PREFIX)/libexec/carrel/,carrel-cli carreld carrel-broker carrel-executor carrel-archive carrel-egress carrel-agent carrel-hostrun)
	rm -f $(SHARE)/man/man1/carrel.1 $(SHARE)/man/man1/carrel-*.1 $(SHARE)/man/man8/carreld.8 $(SHARE)/man/man8/carrel-broker.8
	rm -f $(SHARE)/bash-completion/completions/carrel $(SHARE)/zsh/site-functions/_carrel $(SHARE)/fish/vendor_completions.d/carrel.fish
	rm -f $(SHARE)/doc/carrel/carreld.yaml $(addprefix $(LIB)/systemd/system/,$(UNITS)) $(LIB)/sysusers.d/carrel.conf $(LIB)/tmpfiles.d/carrel.conf
	-rmdir $(DESTDIR)$(PREFIX)/libexec/carrel $(SHARE)/doc/carrel

# A version that dpkg and rpm order: the tag, or a day before the first.
PACKAGE := $(or $(patsubst v%,%,$(VERSION)),0.0.0-$(subst -,,$(DATE)).$(shell git rev-parse --short HEAD 2>/dev/null))
OUT     ?= bin/packages
packages: ## make a deb and an rpm of what install installs, in bin/packages/
	@rm -rf bin/package && mkdir -p $(OUT)
	@$(MAKE) --no-print-directory install PREFIX=/usr DESTDIR=bin/package
	@rm -r bin/package/usr/share/doc
	for kind in deb rpm; do VERSION=$(PACKAGE) GOARCH=$$(go env GOARCH) $(TOOL) nfpm package -f packaging/nfpm.yaml -p $$kind -t $(OUT)/ || exit; done

clean: ## remove what was built, downloaded and measured here
	rm -rf bin .cache bench/out
