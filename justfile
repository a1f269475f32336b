# The recipes of this repository. `./dev RECIPE` installs what a recipe needs and runs it; CI runs `./dev test`, which
# is the recipe `ci`. Everything builds with the dev profile into one target directory; only the demo for release.

set shell := ["bash", "-euo", "pipefail", "-c"]

export MESH_NODE_CACHE := env("MESH_NODE_CACHE", env("XDG_CACHE_HOME", env("HOME") / ".cache") / "mesh-node")
export CARGO_TARGET_DIR := env("CARGO_TARGET_DIR", MESH_NODE_CACHE / "target")

# Show the recipes.
default:
    @just --list --unsorted

# Everything that CI checks: format, lints, documentation, dependencies, tests.
ci: fmt-check lint doc deny test (fuzz "gguf" "20" "-verbosity=0")

# Start a mesh of three processes on this machine and ask a split model something.
demo *ARGS:
    scripts/demo {{ ARGS }}

# Every test, or those that ARGS name (as for `cargo nextest run`): `just test -p mesh-gguf`.
test *ARGS: models
    {{ if ARGS =~ "^(-p|--package) " { "" } else { build_everything } }}
    {{ if ARGS == "" { "cargo test --quiet --locked --workspace --doc" } else { "" } }}
    cargo nextest run --locked {{ if ARGS == "" { "--workspace" } else { ARGS } }}

# The programs that the whole-system tests start (by itself, cargo builds them for a package's own tests only), and the
# tests with them, so that all of it is built from the same features.
build_everything := "cargo build --locked --workspace --bins --tests"

# Fetch the models that the tests run on into the cache, and the chat templates in llama.cpp's source.
models *ARGS:
    scripts/fetch-models {{ ARGS }}
    scripts/upstream > /dev/null

# Format every crate.
fmt:
    cargo fmt --all
    cargo fmt --manifest-path fuzz/Cargo.toml

[doc("Fail if a crate is not formatted.")]
fmt-check:
    cargo fmt --all --check
    cargo fmt --manifest-path fuzz/Cargo.toml --check

# The default test run asks for a few of each kind.
[doc("Hold a real model to a hundred forced calls, schemas and calls of its own of each kind: emulated, native, split.")]
enforce COUNT="100": models
    {{ build_everything }}
    MESH_ENFORCE={{ COUNT }} cargo test --locked -p mesh-tests --test enforce -- --nocapture --test-threads 1

# Lints of every target, warnings refused.
lint:
    cargo clippy --locked --workspace --all-targets -- -D warnings

# The documentation of every crate, broken links refused.
doc:
    RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace --no-deps

[doc("Drive real client libraries and agents against a mesh of two nodes (`--require`: all of them; see scripts/clients).")]
clients *ARGS: models
    scripts/clients {{ ARGS }}

[doc("Hold a gateway to its own /openapi.json by Schemathesis, in an environment of its own (see scripts/schemathesis).")]
schemathesis *ARGS: models
    scripts/schemathesis {{ ARGS }}

[doc("Write the pages that are made from the code: docs/parameters.md and docs/errors.md.")]
docs:
    MESH_WRITE_DOCS=1 cargo test --locked --quiet -p mesh-openai --test docs

# Which crate of ours may use which other one is not this, but docs/dependencies.toml and a test.
[doc("Who may be in the dependency tree, under which licence, from where (deny.toml).")]
deny:
    cargo deny --locked check bans licenses sources

# The default test run proves every family at two cuts.
[doc("Prove that the families named (`just families qwen3,gemma2`), or all, split exactly at every cut.")]
families NAMES="all":
    MESH_FAMILIES={{ NAMES }} cargo test --locked -p mesh-engine --test families -- --nocapture

# The default test run compares digests of what this found, and needs no Python for that.
[doc("Render every chat template by Jinja2 too, show what we render otherwise, and write the digests anew.")]
templates: models
    scripts/jinja2 scripts/render-templates "$(scripts/upstream)/models/templates" \
        crates/chat/tests/templates/conversations.json > "$MESH_NODE_CACHE/template-prompts.jsonl"
    MESH_TEMPLATE_PROMPTS="$MESH_NODE_CACHE/template-prompts.jsonl" \
    MESH_TEMPLATE_DIGESTS="$PWD/crates/chat/tests/templates/expected.txt" \
        cargo test --locked -p mesh-chat --test templates -- --nocapture compared_with_jinja2

# docs/tool-calling.md explains each kind of disagreement.
[doc("Read generated answers by llama.cpp's own parser too, and list what the two read otherwise.")]
differential: models
    cmake -S scripts/differential -B "$MESH_NODE_CACHE/differential" -DLLAMA_CPP="$(scripts/upstream)"
    cmake --build "$MESH_NODE_CACHE/differential" --parallel 2
    MESH_LLAMA_CHAT_PARSE="$MESH_NODE_CACHE/differential/llama-chat-parse" \
        cargo test --locked -p mesh-chat --test templates -- --nocapture compared_with_llama_cpp

# The default test run does a small part of it.
[doc("Ten thousands of mutated answers of models, of random calls and grammars, and of mutated requests.")]
mutations ROUNDS="35": models
    MESH_ROUNDS={{ ROUNDS }} cargo test --locked -p mesh-chat --test templates -- mutation round_trip
    MESH_ROUNDS={{ ROUNDS }} cargo test --locked -p mesh-chat --lib -- what_is_generated
    MESH_ROUNDS={{ ROUNDS }} cargo test --locked -p mesh-node --test scripted -- bodies no_cut

[doc("What is computed again after a turn, for every template of llama.cpp: a table.")]
reuse:
    cargo run --locked --quiet -p mesh-chat --example reuse -- "$(scripts/upstream)/models/templates"

# The default test run does it five times as fast, and does not look at the waits.
[doc("Forty conversations over the real gateway and four replicas of scripted speed: hits, balance and waits.")]
routing:
    MESH_ROUTING=200 cargo test --locked -p mesh-gateway --test gateway -- --nocapture forty_conversations

# Outside CI: it builds llama.cpp's own program for it.
[doc("Prove that the models which llama.cpp's own test program writes split exactly.")]
families-upstream *NAMES:
    scripts/families-upstream {{ NAMES }}

# Outside CI: the driver computes on the processor and takes minutes for what that does in seconds.
[doc("Build with Vulkan, and prove families on Mesa's software driver.")]
gpu-soft *NAMES:
    scripts/gpu-soft {{ NAMES }}

# llama.cpp itself is not instrumented, but its allocations are: a row read past its end, a freed context or a leaked
# batch on our side of the boundary is found. One test is left out: it nests as deep as a measured stack allows, and the
# sanitizer's frames are several times larger than those that were measured.
[doc("The crates that read untrusted bytes or call C, under AddressSanitizer.")]
sanitize: models
    RUSTC_BOOTSTRAP=1 \
    RUSTFLAGS="-Ctarget-cpu=native -Zsanitizer=address" \
    cargo nextest run --locked -p kernels-ffi -p mesh-gguf -p mesh-chat \
        --target "$(rustc -vV | sed -n 's/^host: //p')" --target-dir "$CARGO_TARGET_DIR/sanitize" \
        -E 'not test(nesting_does_not_overflow_the_stack)'

# As above; the node's own dependencies, which are built for it, take a while.
[doc("Ten thousands of mutated requests through gateway and stage 0, under AddressSanitizer.")]
sanitize-requests ROUNDS="35": models
    RUSTC_BOOTSTRAP=1 MESH_ROUNDS={{ ROUNDS }} \
    RUSTFLAGS="-Ctarget-cpu=native -Zsanitizer=address" \
    cargo test --locked -p mesh-node --test scripted \
        --target "$(rustc -vV | sed -n 's/^host: //p')" --target-dir "$CARGO_TARGET_DIR/sanitize" -- bodies

# CI does it for a short time. What it finds is kept in the cache, and becomes a test.
[doc("Feed a reader of untrusted bytes with mutated ones: `just fuzz gguf`, for ten minutes or as many SECONDS.")]
fuzz TARGET SECONDS="600" *ARGS:
    scripts/fuzz {{ TARGET }} {{ SECONDS }} {{ ARGS }}

[doc("Look at the units, the container file and the compose file by systemd-analyze, hadolint and docker compose.")]
deploy:
    scripts/check-deploy

# The default test run plays 60 for a short while.
[doc("Play a mesh of NODES whose nodes come and go for SECONDS, in memory and played time: a table (docs/scale.md).")]
simulate NODES="200" SECONDS="10":
    MESH_SIMULATE={{ NODES }} MESH_CHURN={{ SECONDS }} \
        cargo test --locked -p mesh-mesh --lib -- --nocapture hundreds_that_come_and_go_agree

# Measure: `just bench NAME` runs scripts/bench-NAME; without a name, say which there are.
bench NAME="" *ARGS:
    @if [ -n "{{ NAME }}" ]; then exec ./scripts/bench-{{ NAME }} {{ ARGS }}; \
    else ls scripts | sed -n 's/^bench-/just bench /p'; fi
