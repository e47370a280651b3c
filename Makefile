# Lockstep's tasks. `make help` lists them. Everything needed comes from Go modules, pinned here and in tools/.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

GO      ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
LDFLAGS := -s -w -X github.com/lockstep-rollouts/lockstep/internal/cli.buildVersion=$(VERSION)
BUF     := $(GO) tool -modfile=tools/go.mod buf
LINT    := $(GO) tool -modfile=tools/lint/go.mod golangci-lint
# go test, and at the end once more what failed.
TESTSUM := $(GO) tool -modfile=$(CURDIR)/tools/test/go.mod gotestsum
# CRD and deep copies of a package: $(call CRD,PACKAGE,FOLDER OF THE CRD).
CRD     = $(GO) tool -modfile=tools/crd/go.mod controller-gen paths=./plugin/kruise/v1alpha1 \
	object:headerFile=tools/crd/header.txt output:object:dir=$(1) crd output:crd:dir=$(2)
# The commit that `buf breaking` compares with; on a branch, where it left main.
BASE    ?= main

# Which end-to-end tests `make e2e` runs: one of these.
SUITE   ?=
SUITES  := canary partition blueGreen styles admission traffic argo kruise batchrelease plan
STYLE   ?= canary
# Which Kruise Rollouts SUITE=kruise runs on: v0.6.2 or v0.6.3.
KRUISE  ?= v0.6.2
# Which faults meet the releases of test/e2e: some (each kind of fault in each style) or all (in each course as well).
FAULTS  ?= some
# Where `make test` begins to draw random schedules and inputs. 0: somewhere else each time.
SEED    ?= 1
CHECKS  ?= 2000
# How long `make fuzz` runs each target: a time, or a number of inputs such as 10000x.
FUZZTIME ?= 10s
# What `make bench` measures; hosts beside it compares with stock Kruise Rollouts.
PARTS   ?= start,release,scale
# 1: `make demo` routes real requests through a gateway.
TRAFFIC ?=
# Who decides in `make demo`: grpc (lockstep release) or argo (Argo Rollouts).
HOST    ?= grpc

.PHONY: help
help: ## Show this list.
	@awk 'BEGIN {FS = ":.*## "} /^[a-z0-9-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: bin/lockstep ## Build the one binary, bin/lockstep.

.PHONY: bin/lockstep
bin/lockstep:
	$(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $@ ./cmd/lockstep

.PHONY: demo
demo: bin/lockstep ## Release a LeaderWorkerSet on a real control plane on this machine, and watch; TRAFFIC=1 under real requests, HOST=argo or kruise by those.
	$(GO) run ./test/demo -lockstep bin/lockstep -style '$(STYLE)' -host '$(HOST)' $(if $(filter 1,$(TRAFFIC)),-traffic)

.PHONY: cluster
cluster: ## Start the real control plane, print its KUBECONFIG, stay up until Ctrl-C.
	$(GO) build -o bin/cluster ./test/cluster/cmd/cluster
	exec bin/cluster

.PHONY: test
test: test-unit e2e ## Run all tests.

.PHONY: test-unit
test-unit: ## Run the tests that need no control plane.
	RAPID_SEED=$(SEED) $(TESTSUM) --format standard-quiet -- -race -timeout 15m ./...
	cd test/kruise/controlplane && $(GO) test -timeout 15m ./...

.PHONY: explore
explore: ## Drive CHECKS (2000) new random releases per round through the model, 30 rounds: what `make test` does with the same ones each time.
	$(GO) test ./lwsdriver/plan -run '^Test(Releases|Adoptions)$$' -count 1 -v -timeout 2h -rapid.checks=$(CHECKS)

.PHONY: fuzz
fuzz: ## Run every fuzz target for FUZZTIME (10s); what fails is kept under testdata/fuzz.
	@for file in $$(git grep -l '^func Fuzz' -- '*_test.go'); do \
	  for target in $$(sed -n 's/^func \(Fuzz[A-Za-z]*\)(.*/\1/p' "$$file"); do \
	    echo "$$target in $$(dirname "$$file")"; \
	    $(GO) test "./$$(dirname "$$file")" -vet off -run '^$$' -fuzz "^$$target$$" -fuzztime '$(FUZZTIME)'; \
	  done; \
	done

.PHONY: e2e
e2e: export LOCKSTEP_E2E_FAULTS = $(FAULTS)
e2e: ## Run the end-to-end tests on the real control plane; SUITE=canary runs one part.
	$(GO) run ./test/cluster/cmd/cluster -prebuild -traefik$(if $(filter argo,$(or $(SUITE),argo)), -argo)$(if $(filter kruise,$(or $(SUITE),kruise)), -kruise $(KRUISE))
ifeq ($(SUITE),)
	test/run.sh './test/... ./examples/... ./traffic/...' -timeout 90m -p 1
	LOCKSTEP_KRUISE_VERSION=v0.6.3 test/run.sh './test/kruise/...' -timeout 60m
else ifeq ($(SUITE),traffic)
	test/run.sh './test/traffic/... ./traffic/...' -timeout 60m -p 1
else ifeq ($(SUITE),argo)
	test/run.sh './test/argo/...' -timeout 60m
else ifeq ($(SUITE),kruise)
	LOCKSTEP_KRUISE_VERSION=$(KRUISE) test/run.sh './test/kruise/...' -timeout 60m
else ifeq ($(SUITE),batchrelease)
	test/run.sh './test/batchrelease/...' -timeout 30m
else ifeq ($(filter $(SUITE),$(SUITES)),)
	@echo "there is no suite '$(SUITE)'; there are: $(SUITES)" >&2; exit 2
else
	test/run.sh './test/e2e/...' -timeout 60m -run '^Test$(shell s='$(SUITE)'; echo "$${s^}")'
endif

.PHONY: bench
bench: ## Measure, side by side with LWS's own rolling update, and print a table.
	$(GO) run ./test/cluster/cmd/cluster -prebuild$(if $(findstring hosts,$(PARTS)), -kruise v0.6.3)
	$(GO) run ./test/bench -parts '$(PARTS)'

.PHONY: generate
generate: ## Generate Go from proto/, and the CRD.
	$(BUF) generate
	$(call CRD,plugin/kruise/v1alpha1,config/kruise/crd)

.PHONY: lint
lint: ## Lint Go and protobuf.
	$(BUF) lint
	$(BUF) format --diff --exit-code
	$(LINT) run ./...

.PHONY: verify
verify: lint verify-breaking verify-generated verify-tidy ## All that must hold before a change lands, but for the tests.

.PHONY: verify-breaking
verify-breaking:
	@if git rev-parse -q --verify '$(BASE)^{commit}' >/dev/null && git cat-file -e '$(BASE):buf.yaml' 2>/dev/null; then \
	  $(BUF) breaking --against ".git#ref=$$(git merge-base HEAD '$(BASE)')"; \
	else \
	  echo "buf breaking: no commit '$(BASE)' with a contract to compare with; set BASE" >&2; exit 1; \
	fi

.PHONY: verify-generated
verify-generated:
	@tmp=$$(mktemp -d); trap 'rm -rf "$$tmp"' EXIT; \
	  $(BUF) generate -o "$$tmp" && \
	  for f in $$(cd "$$tmp/proto" && find . -name '*.go'); do \
	    diff -u "proto/$$f" "$$tmp/proto/$$f" || { echo "generated code is stale: run make generate" >&2; exit 1; }; \
	  done
	@tmp=$$(mktemp -d); trap 'rm -rf "$$tmp"' EXIT; \
	  $(call CRD,"$$tmp","$$tmp") && \
	  diff -u plugin/kruise/v1alpha1/zz_generated.deepcopy.go "$$tmp/zz_generated.deepcopy.go" && \
	  diff -u config/kruise/crd/lockstep.dev_rollouttargets.yaml "$$tmp/lockstep.dev_rollouttargets.yaml" || \
	  { echo "generated code is stale: run make generate" >&2; exit 1; }

.PHONY: verify-tidy
verify-tidy:
	$(GO) mod tidy -diff
	cd test/kruise/controlplane && $(GO) mod tidy -diff
	$(GO) mod verify >/dev/null
