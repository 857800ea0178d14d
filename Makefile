# `make test` and `make verify` are the gate. The other targets take longer. None is interactive.

CARGO ?= cargo
# A directory on the disk to benchmark. Temporary directories are created inside it and removed.
BENCH_DIR ?= target/bench
# Campaign sizes: the simulator's seeds and simulated hours, and cycles of the crash tests.
SIM_SEEDS ?= 1..2001
SIM_HOURS ?= 100
KILLS ?= 100
CUTS ?= 60
STREAM_KILLS ?= 50
CALLBACK_KILLS ?= 50
# Number of damaged stores and MANIFESTs.
DAMAGES ?= 4000
MANIFESTS ?= 400

# Attack tests and packages: the binary to use (built if empty), a binary to compare it with, and the attacks to run.
BINARY ?=
BASELINE ?=
ATTACKS ?=

# The binary that is installed and benchmarked.
DIST := --profile dist --features cloud,otlp --locked --bin codeq
DIST_BINARY := target/dist/codeq

# Where `make dist` writes the packages, and the tests that `make dist-test` runs (all if empty).
PACKAGES ?= target/packages
# The maintainer of the Debian package: a placeholder. Set it to your name and address before you publish packages.
MAINTAINER ?= The codeQ authors <codeq@example.org>
DIST_TESTS ?=

# Seconds per fuzz target, and the targets.
FUZZ_SECONDS ?= 60
FUZZ ?= commands configuration cursors filters framing log rows tokens

# cargo-deny is installed as a debug build without optional features: it saves a few minutes and is fast enough.
DENY_VERSION := 0.20.2
DENY := $(shell command -v cargo-deny || echo target/tools/bin/cargo-deny)

# mdBook builds the site. Installed like cargo-deny.
MDBOOK_VERSION := 0.5.2
MDBOOK := target/tools/bin/mdbook

# The compiler for the TypeScript on the pages. Without npm, those programs are not run, and the tests say so.
TYPESCRIPT := typescript@5.9.3

# Python packages for the gRPC client and the S3 server in the tests, and the virtualenv they go into.
REQUIREMENTS := crates/codeq-server/tests/grpc/python/requirements.txt crates/codeq/tests/server/requirements.txt
VENV := target/venv
INTERLEAVINGS := $(CARGO) test --locked -p codeq-engine --features shuttle --lib interleavings
OVER_CLUSTER := CODEQ_TEST_CLUSTER=1 $(CARGO) test --workspace --locked --test server -- http:: grpc::
COMPAT := $(VENV)/bin/python -B tests/compat/run.py --binary target/debug/codeq

.PHONY: all dist dist-test test interleavings compat verify docs bench campaign attack fuzz advisories clean prepare

# The binary to install, with its symbols in a separate file: target/dist/codeq and codeq.debug.
all:
	$(CARGO) build $(DIST)
	scripts/split-symbols $(DIST_BINARY)

# Packages of the same binary, or of BINARY: tarball, symbols, .deb, container image, SBOM, licences, checksums.
dist: export CODEQ_MAINTAINER = $(MAINTAINER)
dist:
	$(if $(BINARY),,$(CARGO) build $(DIST))
	dist/build $(or $(BINARY),$(DIST_BINARY)) $(PACKAGES)

# Installs and runs those packages: a clean Debian root, a container, Prometheus, Helm. Needs root and Debian or Ubuntu.
dist-test:
	dist/test/run $(PACKAGES) $(DIST_TESTS)

# Every test in the workspace (unit, property, conformance, simulator, crash, command line, examples), the server's tests
# again over a cluster of one, then the original codeQ's clients against the binary those tests built.
test: prepare
	$(CARGO) test --workspace --locked
	$(OVER_CLUSTER)
	$(INTERLEAVINGS)
	$(COMPAT)

# Runs the threads around inbox and pipeline in 400 interleavings, or as many as CODEQ_INTERLEAVINGS says.
interleavings:
	$(INTERLEAVINGS)

# What the original codeQ's clients send and expect, reimplemented in Go and Python, against the debug binary.
compat: prepare
	$(CARGO) build --locked --profile test -p codeq
	$(COMPAT)

# What the tests need besides Rust: a C compiler for the allocator and the cryptography, curl and jq for the commands on the
# documentation pages, Python with gRPC (an independent stream client) and an S3 server, and tools to create and mount an
# ext4 image for power cuts. Missing packages are installed if possible; power-cut tests that cannot run say so. Go and npm,
# for the programs on the pages, are optional. Go is also for tests/compat, which reports when it skips the Go tests: the Go
# in Debian 12 is too old for gRPC.
prepare:
	@command -v $(CARGO) >/dev/null || { echo "Rust 1.95 or later is required: https://rustup.rs" >&2; exit 1; }
	@PATH="$$PATH:/usr/sbin:/sbin"; missing=; \
	command -v cc >/dev/null || missing="$$missing gcc libc6-dev"; \
	command -v curl >/dev/null || missing="$$missing curl"; \
	command -v jq >/dev/null || missing="$$missing jq"; \
	python3 -c 'import ensurepip, venv' 2>/dev/null || missing="$$missing python3 python3-venv"; \
	command -v mkfs.ext4 >/dev/null || missing="$$missing e2fsprogs"; \
	command -v mount >/dev/null || missing="$$missing mount"; \
	command -v losetup >/dev/null || missing="$$missing util-linux mount"; \
	if [ -n "$$missing" ]; then \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			export DEBIAN_FRONTEND=noninteractive; \
			{ apt-get update -q && apt-get install -q -y --no-install-recommends $$missing; } </dev/null \
				|| echo "could not install:$$missing" >&2; \
		else \
			echo "not installed:$$missing" >&2; \
		fi; \
	fi
	@cat $(REQUIREMENTS) | cmp -s - $(VENV)/requirements.txt || { \
		python3 -m venv --clear $(VENV) \
		&& $(VENV)/bin/pip install -q --no-input --disable-pip-version-check $(addprefix -r ,$(REQUIREMENTS)) </dev/null \
		&& cat $(REQUIREMENTS) > $(VENV)/requirements.txt; \
	} || echo "could not create $(VENV): the tests with a Python client and an S3 server will fail" >&2
	@! command -v go >/dev/null || (cd tests/compat/go && GOTOOLCHAIN=local go mod download) \
		|| echo "could not download the modules of tests/compat/go" >&2
	@! command -v npm >/dev/null || [ -x target/node/node_modules/.bin/tsc ] \
		|| npm install --silent --no-audit --no-fund --prefix target/node $(TYPESCRIPT) </dev/null \
		|| echo "could not install $(TYPESCRIPT): the TypeScript on the pages will not be run" >&2

# Formatting, lints, documentation, and the build without optional features. Read-only. Licences, sources and unused
# dependencies are checked by a test (crates/codeq/tests/project/dependencies.rs). The test profile is used so that
# dependencies built for the tests are not built again.
verify:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --profile test --workspace --all-targets --locked -- -D warnings
	$(CARGO) clippy --profile test -p codeq --locked -- -D warnings
	.ci/clippy-bans
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --profile test --workspace --no-deps --document-private-items --locked

# The documentation as a site: target/book/index.html.
docs: $(MDBOOK)
	scripts/book target/book-src
	$(MDBOOK) build

$(MDBOOK):
	$(CARGO) install --locked --debug --root target/tools mdbook@$(MDBOOK_VERSION) --no-default-features --features search

# Random inputs for code that reads bytes from outside. Needs a nightly toolchain and cargo-fuzz (`cargo install cargo-fuzz`).
# A short run over the same functions with fixed seeds is part of `make test`.
fuzz:
	CODEQ_FUZZ_CORPUS=$(CURDIR)/fuzz/corpus $(CARGO) test --locked -p codeq --test codeq project::fuzz
	set -e; for target in $(FUZZ); do \
		$(CARGO) +nightly fuzz run $$target -- -max_total_time=$(FUZZ_SECONDS); \
	done

# Known vulnerabilities. Not part of `verify`: the database comes from GitHub, which not every machine can reach, and
# changes independently of the tree. crates/codeq/tests/project/dependencies.rs enforces the minimum versions that matter, offline.
advisories: $(DENY)
	$(DENY) --locked check advisories

target/tools/bin/cargo-deny:
	$(CARGO) install --locked --debug --no-default-features --root target/tools cargo-deny@$(DENY_VERSION)

# Reproduces docs/performance.md.
bench:
	mkdir -p $(BENCH_DIR)
	$(CARGO) build $(DIST)
	$(DIST_BINARY) bench engine --dir $(BENCH_DIR)
	$(DIST_BINARY) bench engine --dir $(BENCH_DIR) --in-flight 256,1024 --retention-ms 2000
	$(DIST_BINARY) bench engine --dir $(BENCH_DIR) --in-flight 1,64,256 --durability os
	$(DIST_BINARY) bench scenarios --dir $(BENCH_DIR)
	$(DIST_BINARY) bench http --seconds 8 --dir $(BENCH_DIR)
	$(DIST_BINARY) bench http list --dir $(BENCH_DIR)
	scripts/bench-streams $(DIST_BINARY) $(BENCH_DIR)
	scripts/bench-callbacks $(DIST_BINARY) $(BENCH_DIR)

# Long simulator and crash campaigns. Power cuts need root and loop devices.
campaign: prepare
	$(CARGO) run --release --locked -p codeq -- sim --seeds $(SIM_SEEDS) --hours $(SIM_HOURS)
	$(CARGO) run --release --locked -p codeq -- sim --cluster --seeds $(SIM_SEEDS)
	$(CARGO) run --release --locked -p codeq -- sim --cluster --sabotage all
	$(CARGO) run --release --locked -p codeq-crash -- kill --cycles $(KILLS)
	$(CARGO) run --release --locked -p codeq-crash -- power --cycles $(CUTS)
	$(CARGO) run --release --locked -p codeq-crash -- damage --stores $(DAMAGES) --manifests $(MANIFESTS)
	CODEQ_HTTP_KILLS=$(KILLS) CODEQ_STREAM_KILLS=$(STREAM_KILLS) CODEQ_CALLBACK_KILLS=$(CALLBACK_KILLS) \
		$(CARGO) test --locked -p codeq --test codeq server:: -- --nocapture

# A hostile tenant and a stranger against a server in a memory cgroup of 512 MiB (docs/security.md). Needs root. BASELINE
# compares two binaries in alternating runs, in about ten minutes; DOCUMENT=1 writes the table into docs/security.md.
attack:
	$(if $(BINARY),,$(CARGO) build $(DIST))
	python3 -B tests/attack/run.py --binary $(or $(BINARY),$(DIST_BINARY)) $(if $(BASELINE),--baseline $(BASELINE)) \
		$(if $(ATTACKS),--attacks $(ATTACKS)) $(if $(DOCUMENT),--document)

clean:
	$(CARGO) clean
