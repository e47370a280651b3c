# Lockstep's tasks. `make help` lists them. Everything needed comes from Go modules, pinned here and in tools/.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

GO      ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
LDFLAGS := -s -w -X github.com/lockstep-rollouts/lockstep/internal/cli.buildVersion=$(VERSION)
# The path of a tool that one of the modules in tools pins: $(call TOOL,MODULE,TOOL). It is not run by `go tool`, which succeeds when a
# signal kills it, such as for want of memory.
TOOL     = "$$($(GO) tool -n -modfile=$(CURDIR)/tools/$(1)/go.mod $(2))"
BUF      = $(call TOOL,proto,buf)
# Findings are cached with the path of the checkout they were found in, which the exclusions look at: a cache for each checkout.
LINT     = GOLANGCI_LINT_CACHE='$(CURDIR)/.cache/golangci-lint' $(call TOOL,lint,golangci-lint)
# go test, and at the end once more what failed.
TESTSUM  = $(call TOOL,test,gotestsum)
# The suites and what they run on are a module of their own.
SUITES  := $(GO) run -C test ./run
# CRD and deep copies of a package: $(call CRD,PACKAGE,FOLDER OF THE CRD).
CRD      = $(call TOOL,crd,controller-gen) paths=./plugin/kruise/v1alpha1 \
	object:headerFile=tools/crd/header.txt output:object:dir=$(1) crd output:crd:dir=$(2)
# The commit that `buf breaking` compares with; on a branch, where it left main.
BASE    ?= main

# Static binaries with the same flags everywhere, so that a package is compiled once for all of them. Without debug information, which
# takes a quarter of the compiler's time and which the linker strips, and with inlining in this module and Go's own packages only: see
# test/cluster/build.go. `make build` and `make bench` inline everywhere, as a release does.
export CGO_ENABLED := 0
INLINED := $(strip $(shell $(GO) env GOFLAGS) -trimpath -gcflags=all=-dwarf=false)
OWN     := github.com/lockstep-rollouts/lockstep/...
export GOFLAGS := $(INLINED) '-gcflags=all=-dwarf=false -l' -gcflags=std=-dwarf=false -gcflags=$(OWN)=-dwarf=false

# Which end-to-end tests `make e2e` runs: one suite or several; see test/run.
SUITE   ?=
# Which of their tests: a pattern for the names. Empty: all.
RUN     ?=
# How often `make e2e` runs each test.
COUNT   ?= 1
STYLE   ?= canary
# The versions that `make e2e` runs on, e.g. KUBERNETES=1.35; docs/compatibility.md lists them. Empty: the defaults.
KUBERNETES  ?=
LWS         ?=
ARGO        ?=
KRUISE      ?=
GATEWAY_API ?=
# Which faults meet the releases of test/e2e: some (each kind of fault in each style) or all (in each course as well).
FAULTS  ?= some
# Where `make test` begins to draw random schedules and inputs. 0: somewhere else each time.
SEED    ?= 1
STATES  ?= 60000
DISTURBANCES ?= 2
# How many courses of random acts `make explore` takes besides, from SEED on.
WALKS   ?= 20000
DURATION ?= 5m
# Which of its mutations `make mutations` runs: those whose file or description contains this.
ONLY    ?=
# 1: unit tests run with the race detector, for which a new machine compiles all libraries once more.
RACE    ?=
# How long `make fuzz` runs each target: a time, or a number of inputs such as 10000x.
FUZZTIME ?= 10s
# The name of a release's image in its registry.
IMAGE   ?= ghcr.io/lockstep-rollouts/lockstep
# What `make bench` measures, of start, release, scale, storm and fleet.
PARTS   ?= start,release,scale
comma   := ,
# 1: `make demo` routes real requests through a gateway.
TRAFFIC ?=
# 1: its pods have containers, on a real node, and the requests are streams. As root.
NODE    ?=
# Who decides in `make demo`: grpc (lockstep release), argo (Argo Rollouts) or kruise (Kruise Rollouts).
HOST    ?= grpc
# What `make demo` releases: leaderworkerset, or disaggregated (prefill and decode).
KIND    ?= leaderworkerset
# yes: `make demo` may download Kubernetes' official programs instead of building them.
PREBUILT ?=
.PHONY: help
help: ## Show this list.
	@awk 'BEGIN {FS = ":.*## "} /^[a-z0-9-]+:.*## / {printf "  %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: export GOFLAGS := $(INLINED)
build: bin/lockstep ## Build the one binary, bin/lockstep.

# The compiler collects its garbage less often, as in test/cluster/build.go.
.PHONY: bin/lockstep
bin/lockstep: export GOGC := 400
bin/lockstep:
	$(GO) build -ldflags '$(LDFLAGS)' -o $@ ./cmd/lockstep

.PHONY: release
release: ## Build everything that a release publishes into dist/, e.g. VERSION=v0.1.0: docs/releasing.md.
	VERSION='$(VERSION)' IMAGE='$(IMAGE)' tools/release/release.sh

.PHONY: demo
demo: demo-time bin/lockstep ## Release a LeaderWorkerSet on a real control plane on this machine, and watch; TRAFFIC=1 under real requests, NODE=1 to real containers, HOST=argo or kruise by those, KIND=disaggregated prefill and decode; KUBECONFIG=FILE in a cluster of yours with LWS; PREBUILT=yes downloads Kubernetes.
	$(GO) run -C test ./demo $(if $(filter command,$(origin KUBECONFIG)),-kubeconfig '$(abspath $(KUBECONFIG))') -style '$(STYLE)' -host '$(HOST)' -kind '$(KIND)' $(if $(filter 1,$(TRAFFIC)),-traffic) $(if $(filter 1,$(NODE)),-node) $(if $(filter yes 1,$(PREBUILT)),-prebuilt)

# What the demo will take, before anything is built. From the second run on the cache has the programs that its options need.
DEMO_PARTS := kubernetes $(filter argo kruise,$(HOST)) $(if $(filter 1,$(NODE)),containerd,$(if $(filter 1,$(TRAFFIC)),traefik))
.PHONY: demo-time
demo-time:
	@$(if $(filter command,$(origin KUBECONFIG)),,for part in $(DEMO_PARTS); do \
	  compgen -G "$${LOCKSTEP_CLUSTER_CACHE:-$${XDG_CACHE_HOME:-$$HOME/.cache}/lockstep/cluster}/$$part/*/bin" >/dev/null || { \
	  echo 'The first run with these options takes 5 to 10 minutes on 2 cores, later ones about one: it builds everything from Go modules. With PREBUILT=yes it downloads Kubernetes (about 270 MB) instead of building it.'; break; }; done)

.PHONY: cluster
cluster: ## Start the real control plane, print its KUBECONFIG, stay up until Ctrl-C.
	$(GO) build -C test -o ../bin/cluster ./cluster/cmd/cluster
	cd test && exec ../bin/cluster

.PHONY: test
test: test-unit ## Run the unit tests and the core courses on Kubernetes and LWS, before every commit.
	@recordings=$$(mktemp -d) && trap 'rm -rf "$$recordings"' EXIT && \
	LOCKSTEP_TEST_RECORDINGS="$$recordings" $(SUITES) -level test e2e && \
	$(GO) test ./lwsdriver/plan -count 1 -run '^TestRecordingsArePaths$$' -recordings "$$recordings/*.jsonl"

.PHONY: test-hosts
test-hosts: ## Run what a change of plugin/ needs: Argo Rollouts, Kruise Rollouts, BatchReleases.
	$(SUITES) -level test argo kruise batchrelease

.PHONY: test-traffic
test-traffic: ## Run what a change of traffic/ needs: requests through a gateway, routes, Services, pools.
	$(SUITES) -level test traffic

.PHONY: test-nodes
test-nodes: ## Run what a change of drains, images or test/node needs: real containers on a real kubelet, as root.
	$(SUITES) -level test node

.PHONY: test-install
test-install: ## Run what a change of config/, examples/, tools/release or documented commands needs: Helm, kubectl, each command of docs.
	$(SUITES) -level test install artifacts commands examples

.PHONY: test-monitoring
test-monitoring: ## Run what a change of gates or the dashboard needs: Prometheus and a browser.
	$(SUITES) -level test monitoring

.PHONY: test-others
test-others: ## Run test-hosts, test-traffic, test-nodes, test-install and test-monitoring, side by side.
	$(SUITES) -level test -side-by-side 3 -without e2e

.PHONY: test-all
test-all: RACE := 1
test-all: test-unit ## Run every test, every fuzz target for a minute, and a smoke course on each other version of Kubernetes, LWS, Argo, Kruise and the Gateway API.
	$(MAKE) fuzz FUZZTIME=1m
	$(SUITES) -matrix

.PHONY: test-unit
test-unit: ## Run the tests that need no control plane; RACE=1 with the race detector.
	$(if $(filter 1,$(RACE)),CGO_ENABLED=1) RAPID_SEED=$(SEED) $(TESTSUM) --format standard-quiet -- $(if $(filter 1,$(RACE)),-race) -vet off -timeout 15m ./...
	cd test && $(if $(filter 1,$(RACE)),CGO_ENABLED=1) RAPID_SEED=$(SEED) $(TESTSUM) --format standard-quiet -- $(if $(filter 1,$(RACE)),-race) -vet off -timeout 15m ./...

.PHONY: explore
explore: ## Visit STATES (60000) states of each small world, and three times as many of those that route requests, with at most DISTURBANCES (2), and take WALKS (20000) long random courses; `make test` visits the worst ones.
	$(GO) test ./lwsdriver/plan -run '^(TestExplore|TestWalks|TestWalksOfRoles)$$' -count 1 -v -timeout 2h -explore.states=$(STATES) -explore.disturbances=$(DISTURBANCES) -explore.walks=$(WALKS)

.PHONY: fuzz
fuzz: ## Run every fuzz target for FUZZTIME (10s); what fails is kept under testdata/fuzz.
	@for file in $$(git grep -l '^func Fuzz' -- '*_test.go'); do \
	  for target in $$(sed -n 's/^func \(Fuzz[A-Za-z]*\)(.*/\1/p' "$$file"); do \
	    echo "$$target in $$(dirname "$$file")"; \
	    $(GO) test -C "$$(dirname "$$file")" . -vet off -run '^$$' -fuzz "^$$target$$" -fuzztime '$(FUZZTIME)' -fuzzminimizetime 1s; \
	  done; \
	done

.PHONY: mutations
mutations: ## Take each limit of the planner out, one after another, and see which rule the explorer finds broken; ONLY=limits.go those of one file.
	$(GO) run -C test ./mutations -only '$(ONLY)'

.PHONY: e2e
e2e: ## Run every end-to-end test, or those of SUITE whose names match RUN, COUNT times; on other versions with KUBERNETES=, LWS=, ARGO=, KRUISE=, GATEWAY_API=.
	LOCKSTEP_TEST_KUBERNETES='$(KUBERNETES)' LOCKSTEP_TEST_LWS='$(LWS)' LOCKSTEP_TEST_ARGO='$(ARGO)' LOCKSTEP_TEST_KRUISE='$(KRUISE)' \
	  LOCKSTEP_TEST_GATEWAY_API='$(GATEWAY_API)' LOCKSTEP_E2E_FAULTS='$(FAULTS)' $(SUITES) -count $(COUNT) $(if $(RUN),-run '$(RUN)') $(SUITE)

.PHONY: robustness
robustness: ## Release one workload after the other for DURATION (5m) under random faults, from SEED on; a course that fails is kept and replayed.
	LOCKSTEP_TEST_ROBUSTNESS='$(DURATION)' LOCKSTEP_TEST_SEED='$(SEED)' $(SUITES) -run '^TestRobustness$$' e2e

.PHONY: bench
bench: export GOFLAGS := $(INLINED)
bench: ## Measure, side by side with LWS's own rolling update, and print a table.
	$(GO) run -C test ./cluster/cmd/cluster -prebuild
	$(GO) test -C test -tags e2e -vet off ./bench -run '^$$' -bench 'Lockstep/^($(subst $(comma),|,$(PARTS)))$$' -benchtime 1x -timeout 0

.PHONY: generate
generate: ## Generate Go from proto/, the CRD, and the reference in docs/.
	$(BUF) generate
	$(GO) test ./internal/cli -run TestReference -update
	$(GO) test ./config -run TestValuesReference -update
	$(GO) test ./lwsdriver/preflight -run TestRulesReference -update
	$(GO) test ./lwsdriver -run TestMetricsReference -update
	$(GO) test ./plugin/argo ./plugin/kruise -run TestFieldsReference -update
	$(GO) test -C test ./run -run TestTable -update
	$(call CRD,plugin/kruise/v1alpha1,config/kruise/crd)

.PHONY: images
images: bin/lockstep ## Draw the plans in docs/images, and record the terminal sessions there on a real control plane.
	$(GO) test -C test ./picture -run Documented -update
	$(GO) run -C test ./sessions

.PHONY: site
site: ## Build the documentation as a static site into dist/site, with npm.
	# Not npm ci: it refuses a lock file that names no registry, for packages of other platforms.
	cd docs && npm install --no-save --silent && npm run --silent build

.PHONY: lint
lint: ## Lint Go, protobuf and the workflows.
	$(call TOOL,actionlint,actionlint)
	$(BUF) lint
	$(BUF) format --diff --exit-code
	$(LINT) run ./...
	cd test && $(LINT) run ./...

.PHONY: verify
verify: lint verify-breaking verify-generated verify-tidy verify-vulnerabilities verify-licenses verify-docs verify-reproducible ## All that must hold before a change lands, but for the tests.

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
	  done && \
	  diff -u docs/reference-proto.md "$$tmp/docs/reference-proto.md" || { echo "the reference is stale: run make generate" >&2; exit 1; }
	@tmp=$$(mktemp -d); trap 'rm -rf "$$tmp"' EXIT; \
	  $(call CRD,"$$tmp","$$tmp") && \
	  diff -u plugin/kruise/v1alpha1/zz_generated.deepcopy.go "$$tmp/zz_generated.deepcopy.go" && \
	  diff -u config/kruise/crd/lockstep.dev_rollouttargets.yaml "$$tmp/lockstep.dev_rollouttargets.yaml" || \
	  { echo "generated code is stale: run make generate" >&2; exit 1; }
	$(GO) test -vet off -run '^Test(Values|Rules|Metrics|Fields)?Reference$$' ./internal/cli ./config ./lwsdriver ./lwsdriver/preflight ./plugin/argo ./plugin/kruise

.PHONY: verify-tidy
verify-tidy:
	$(GO) mod tidy -diff
	cd test && $(GO) mod tidy -diff
	$(GO) mod verify >/dev/null

# Vulnerabilities that the binary can reach. Without the database, vuln.go.dev or that of GOVULNDB, nothing is checked, and it says so.
.PHONY: verify-vulnerabilities
verify-vulnerabilities:
	@if out=$$($(call TOOL,vuln,govulncheck) ./cmd/lockstep 2>&1); then echo "govulncheck: $$(tail -1 <<<"$$out")"; \
	elif grep -q '^govulncheck: fetching vulnerabilities: ' <<<"$$out"; then \
	  echo "govulncheck: NOT CHECKED, the database can't be reached; set GOVULNDB to a copy. $$(tail -1 <<<"$$out")" >&2; \
	else echo "$$out" >&2; exit 1; fi

# Links and anchors, words to avoid, and what documents say about the code.
.PHONY: verify-docs
verify-docs:
	$(GO) test -C test -vet off ./docs

# The licenses of the binary's modules, and the header of each source. Never cached: go does not see what the tests run.
.PHONY: verify-licenses
verify-licenses:
	$(GO) test -C test -vet off -count 1 ./licenses

# Two copies of the sources, in folders of different names, make the same binary. A comment that differs has our own packages compiled
# for each; their dependencies and the standard library come from the build cache.
.PHONY: verify-reproducible
verify-reproducible:
	@tmp=$$(mktemp -d); trap 'rm -rf "$$tmp"' EXIT; \
	for copy in one another; do \
	  mkdir "$$tmp/$$copy"; \
	  git ls-files -z -- go.mod go.sum cmd config internal lwsdriver plugin proto traffic | xargs -0 tar -cf - | tar -xf - -C "$$tmp/$$copy"; \
	  find "$$tmp/$$copy" -name '*.go' -exec sed -i "\$$a // $$copy" {} +; \
	  (cd "$$tmp/$$copy" && $(GO) build -ldflags '$(LDFLAGS) -buildid=' -o "../$$copy.bin" ./cmd/lockstep); \
	done; \
	cmp "$$tmp/one.bin" "$$tmp/another.bin" || { echo "two builds of the same sources differ" >&2; exit 1; }; \
	echo "two builds are identical: sha256 $$(sha256sum <"$$tmp/one.bin" | cut -c1-64)"
