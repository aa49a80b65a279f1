# What can be done with a checkout. `.ci/run` uses the same targets.

CARGO ?= cargo
# Where rustup puts cargo, for a shell that was open before it was installed.
export PATH := $(PATH):$(HOME)/.cargo/bin

.PHONY: demo test test-otlp test-clients test-page test-systemd test-observability soak fuzz deny advisories \
	sbom check examples bench instructions deb needs

# Every kind of refusal, and what a client sees of it. No configuration, no keys.
demo: needs
	$(CARGO) run --release --locked -- demo

# The whole test suite.
test: needs
	$(CARGO) test --locked

# Traces, which only a build with their feature exports.
test-otlp: needs
	$(CARGO) test --locked --features otlp --test otlp

# Real clients (Codex, the SDKs) against berth and the simulated upstream.
test-clients: needs
	tests/clients/run.sh

# The status page in a real browser.
test-page: needs
	CARGO="$(CARGO)" tests/page/run.sh

# The unit under a real systemd, reloaded under load. Needs root; says so where it cannot run.
test-systemd: needs
	$(CARGO) test --locked --test systemd

# Alerts and board (conf/observability) on a real Prometheus that scrapes a real berth.
test-observability: needs
	CARGO="$(CARGO)" tests/observability/run.sh

# Faults, restarts and reloads for MINUTES; what came of it goes into docs/reliability.md.
MINUTES ?= 30
soak: needs
	$(CARGO) test --release --locked --test soak -- --minutes $(MINUTES) --write docs/reliability.md

# Each target of fuzz/ for a minute, or SECONDS_EACH. `make test` replays what they began with.
fuzz: needs
	fuzz/run.sh

# Licences, sources and bans of all that berth is built of (deny.toml).
deny:
	tools/cargo.sh deny --locked check --hide-inclusion-graph --allow duplicate bans licenses sources

# Known defects of it. Needs the database of rustsec.org.
advisories:
	tools/cargo.sh deny --locked check --hide-inclusion-graph advisories

# What the binary is made of, as CycloneDX: target/berth.cdx.json.
sbom: needs
	CARGO="$(CARGO)" tools/sbom.sh

# What a change must pass before it is looked at.
check: needs
	$(CARGO) fmt --all --check
	$(CARGO) fmt --manifest-path fuzz/Cargo.toml --check
	$(CARGO) clippy --locked --all-targets --features otlp -- -D warnings
	$(CARGO) clippy --locked -p berth-field -p berth-pure --all-targets -- -D warnings

# Every example configuration must be good.
examples: needs
	CARGO="$(CARGO)" tests/examples.sh

# berth beside bare Pingora, nginx, HAProxy, LiteLLM and Portkey, in about ten minutes on a quiet machine: writes
# docs/performance.md. QUICK=1 does everything once and briefly, to see that it works; ONLY="requests tls" only these.
bench: needs
	CARGO="$(CARGO)" BENCH_QUICK="$(QUICK)" bench/run.sh $(ONLY)

# Instructions of the hot parts against the list in bench/pure/instructions.txt. WRITE=1 writes the list anew. As
# `make test` builds them: a gross regression shows in either build, and this one is there already.
instructions: needs
	$(CARGO) run --locked -p berth-pure --bin instructions -- $(if $(WRITE),--write)

# A package for Debian and Ubuntu: target/deb/berth_VERSION_ARCH.deb.
deb: needs
	$(CARGO) build --release --locked
	packaging/deb/build.sh target/release/berth

# What the build needs beyond Rust: a C compiler and cmake, from Debian's or Ubuntu's packages.
needs:
	@command -v $(CARGO) > /dev/null || { echo "cargo is not there: https://rustup.rs" >&2; exit 1; }
	@if ! command -v cc > /dev/null || ! command -v cmake > /dev/null; then \
		as_root=; [ "$$(id -u)" = 0 ] || as_root=sudo; \
		$$as_root apt-get update && \
		$$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
			build-essential cmake; \
	fi
