//! The shape of the workspace, checked: who depends on whom (`docs/dependencies.toml` against what cargo says), which
//! crates are pure, where `unsafe` may stand, and that the gateway's program holds nothing of llama.cpp.
//!
//! These tests read manifests, sources and built programs; nothing is started. Start with [`Rules`], the declared shape,
//! and [`Workspace`], the actual one.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

#[test]
fn edges_between_crates_are_the_declared_ones() -> Result<()> {
    let (rules, workspace) = (Rules::read()?, Workspace::read()?);
    let mut faults = Vec::new();
    for (section, declared, actual) in [
        ("normal", &rules.normal, workspace.edges(|kind| kind != Some("dev"))),
        ("dev", &rules.dev, workspace.edges(|kind| kind == Some("dev"))),
    ] {
        let declared: BTreeSet<_> =
            declared.iter().flat_map(|(from, to)| to.iter().map(move |to| (from.clone(), to.clone()))).collect();
        for (from, to) in actual.difference(&declared) {
            faults.push(format!("{from} uses {to}, which [{section}] does not list"));
        }
        for (from, to) in declared.difference(&actual) {
            faults.push(format!("[{section}] lists {from} -> {to}, which no longer exists"));
        }
    }
    for package in workspace.packages.keys().filter(|name| !rules.normal.contains_key(*name)) {
        faults.push(format!("[normal] says nothing about {package}"));
    }
    for package in rules.normal.keys().filter(|name| !workspace.packages.contains_key(*name)) {
        faults.push(format!("[normal] names {package}, which is no package of this workspace"));
    }
    ensure!(faults.is_empty(), "docs/dependencies.toml and the manifests differ:\n  {}", faults.join("\n  "));
    Ok(())
}

#[test]
fn pure_crates_have_no_runtime_and_no_network_below_them() -> Result<()> {
    let (rules, workspace) = (Rules::read()?, Workspace::read()?);
    for package in &rules.pure.packages {
        workspace.ensure_nothing_below(package, &rules.pure.without)?;
    }
    Ok(())
}

#[test]
fn the_gateway_has_no_engine_below_it() -> Result<()> {
    let (rules, workspace) = (Rules::read()?, Workspace::read()?);
    // The same question about the node has to find them, or it would prove nothing about the gateway.
    for forbidden in &rules.gateway.without {
        ensure!(workspace.below("mesh-node")?.contains(forbidden), "{forbidden} is not below mesh-node: misspelt?");
    }
    workspace.ensure_nothing_below(&rules.gateway.package, &rules.gateway.without)
}

#[test]
fn the_gateway_program_holds_no_symbol_of_llama_cpp() -> Result<()> {
    let rules = Rules::read()?;
    let (gateway, node) = (built_program("mesh-gateway")?, built_program("mesh-node")?);
    for symbol in &rules.gateway.without_symbols {
        ensure!(occurs(symbol, &node), "`{symbol}` is not in mesh-node either: this test would find nothing");
        ensure!(!occurs(symbol, &gateway), "the program mesh-gateway contains `{symbol}`");
    }
    Ok(())
}

#[test]
fn unsafe_code_is_forbidden_everywhere_but_in_its_one_crate() -> Result<()> {
    let (rules, workspace) = (Rules::read()?, Workspace::read()?);
    for package in workspace.packages.values().filter(|package| !rules.unsafety.packages.contains(&package.name)) {
        for target in package.targets.iter().filter(|target| target.is_library_or_program()) {
            let source = std::fs::read_to_string(&target.src_path)
                .with_context(|| format!("reading {}", target.src_path.display()))?;
            ensure!(
                source.lines().any(|line| line.trim() == "#![forbid(unsafe_code)]"),
                "{} does not say #![forbid(unsafe_code)]",
                target.src_path.display()
            );
        }
    }
    Ok(())
}

/// `docs/dependencies.toml`: the shape that this workspace should have.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rules {
    pure: Pure,
    gateway: Gateway,
    #[serde(rename = "unsafe")]
    unsafety: Unsafety,
    normal: BTreeMap<String, BTreeSet<String>>,
    dev: BTreeMap<String, BTreeSet<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Pure {
    packages: BTreeSet<String>,
    without: BTreeSet<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Gateway {
    package: String,
    without: BTreeSet<String>,
    without_symbols: BTreeSet<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Unsafety {
    packages: BTreeSet<String>,
}

impl Rules {
    fn read() -> Result<Self> {
        let path = root().join("docs/dependencies.toml");
        let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        toml::from_str(&text).with_context(|| format!("reading {}", path.display()))
    }
}

/// What `cargo metadata` says: the packages of this workspace, and the whole resolved tree below them.
struct Workspace {
    packages: BTreeMap<String, Package>,
    names: BTreeMap<String, String>,
    nodes: BTreeMap<String, Node>,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    workspace_members: BTreeSet<String>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    dependencies: Vec<Dependency>,
    targets: Vec<Target>,
}

/// A dependency as a manifest declares it; `kind` is absent for a normal one, else `dev` or `build`.
#[derive(Deserialize)]
struct Dependency {
    name: String,
    kind: Option<String>,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
    src_path: PathBuf,
}

impl Target {
    fn is_library_or_program(&self) -> bool {
        self.kind.iter().any(|kind| kind == "lib" || kind == "bin")
    }
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<ResolvedDependency>,
}

#[derive(Deserialize)]
struct ResolvedDependency {
    pkg: String,
    dep_kinds: Vec<DependencyKind>,
}

#[derive(Deserialize)]
struct DependencyKind {
    kind: Option<String>,
}

impl Workspace {
    fn read() -> Result<Self> {
        let host = cargo(&["--version", "--verbose"])?;
        let host = host.lines().find_map(|line| line.strip_prefix("host: ")).context("cargo names no host")?;
        // Offline: all that this platform needs was fetched to build this test.
        let arguments = ["metadata", "--format-version=1", "--locked", "--offline", "--filter-platform", host];
        let metadata: Metadata = serde_json::from_str(&cargo(&arguments)?).context("reading cargo's metadata")?;
        let names = metadata.packages.iter().map(|package| (package.id.clone(), package.name.clone())).collect();
        let members = metadata.workspace_members;
        Ok(Self {
            names,
            packages: metadata
                .packages
                .into_iter()
                .filter(|package| members.contains(&package.id))
                .map(|package| (package.name.clone(), package))
                .collect(),
            nodes: metadata.resolve.nodes.into_iter().map(|node| (node.id.clone(), node)).collect(),
        })
    }

    /// Edges between packages of this workspace whose kind satisfies `wanted`.
    fn edges(&self, wanted: impl Fn(Option<&str>) -> bool) -> BTreeSet<(String, String)> {
        let mut edges = BTreeSet::new();
        for package in self.packages.values() {
            for dependency in &package.dependencies {
                if self.packages.contains_key(&dependency.name) && wanted(dependency.kind.as_deref()) {
                    edges.insert((package.name.clone(), dependency.name.clone()));
                }
            }
        }
        edges
    }

    /// The names of all packages that `package` is built from, itself excluded; dependencies of tests do not count.
    fn below(&self, package: &str) -> Result<BTreeSet<String>> {
        let start = &self.packages.get(package).with_context(|| format!("{package} is not in this workspace"))?.id;
        let mut seen = BTreeSet::new();
        let mut open = vec![start];
        while let Some(id) = open.pop() {
            let node = self.nodes.get(id).with_context(|| format!("cargo resolved no {id}"))?;
            for dependency in &node.deps {
                let only_for_tests = dependency.dep_kinds.iter().all(|kind| kind.kind.as_deref() == Some("dev"));
                if !only_for_tests && seen.insert(&dependency.pkg) {
                    open.push(&dependency.pkg);
                }
            }
        }
        seen.into_iter().map(|id| self.names.get(id).cloned().with_context(|| format!("{id} has no name"))).collect()
    }

    fn ensure_nothing_below(&self, package: &str, forbidden: &BTreeSet<String>) -> Result<()> {
        let found: Vec<_> = self.below(package)?.intersection(forbidden).cloned().collect();
        ensure!(found.is_empty(), "below {package} there is {} (cargo tree -p {package})", found.join(", "));
        Ok(())
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}

fn cargo(arguments: &[&str]) -> Result<String> {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(program).args(arguments).current_dir(root()).output().context("starting cargo")?;
    if !output.status.success() {
        bail!("cargo {} failed:\n{}", arguments.join(" "), String::from_utf8_lossy(&output.stderr));
    }
    String::from_utf8(output.stdout).context("cargo's output is not UTF-8")
}

/// The bytes of a program of this workspace, built beside this test (`<target>/<profile>/deps/architecture-…`).
fn built_program(name: &str) -> Result<Vec<u8>> {
    let this_test = std::env::current_exe().context("finding this test's own path")?;
    let folder = this_test.parent().and_then(Path::parent).context("this test has no target folder")?;
    let path = folder.join(name);
    std::fs::read(&path)
        .with_context(|| format!("reading {}; `./dev test` builds it (cargo build -p {name})", path.display()))
}

fn occurs(needle: &str, haystack: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle.as_bytes())
}
