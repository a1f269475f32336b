//! The kit that every stage passes: it holds an implementation to the contract in [`crate::Stage`]'s documentation.
//!
//! It talks to a stage through links alone, so that the same checks run against a stage in this process, in a child, on
//! another machine, and a chain of those; first, middle, last or whole. Each check opens links of its own. Outputs are
//! compared with outputs: what a slot computes after a truncation, a copy or a close must be what it computes when it
//! has never held anything else.
//!
//! Owns: the checks. Does not own: a model's correctness, faults that only an implementation can inject.
//! Start with [`check`].

mod checks;
mod probe;

use std::fmt;
use std::time::Duration;

use mesh_types::TokenId;

use crate::stage::Stage;

/// How a stage is checked.
#[derive(Clone, Debug)]
pub struct Kit {
    /// Tokens of the stage's vocabulary that prompts are made of; at least one. More kinds make better checks.
    pub tokens: Vec<TokenId>,
    /// Most difference between two values that should be the same. 0 where a stage computes alike however a prompt is
    /// cut into batches; kernels round differently.
    pub tolerance: f32,
    /// How long any single answer may take.
    pub deadline: Duration,
}

impl Kit {
    /// Exact equality, and ten seconds an answer.
    pub fn new(tokens: impl IntoIterator<Item = i32>) -> Self {
        Self { tokens: tokens.into_iter().map(TokenId).collect(), tolerance: 0.0, deadline: Duration::from_secs(10) }
    }

    /// Allows for kernels that round.
    #[must_use]
    pub fn with_tolerance(self, tolerance: f32) -> Self {
        Self { tolerance, ..self }
    }
}

/// A clause of the contract that does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The check that found it.
    pub check: &'static str,
    /// What was seen.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.check, self.what)
    }
}

/// Runs all checks against `stage`, one after another.
///
/// # Errors
/// Every violation found.
///
/// # Cancel safety
/// May be dropped.
pub async fn check(stage: &dyn Stage, kit: &Kit) -> Result<(), Vec<Violation>> {
    let bench = probe::Bench { stage, kit };
    let mut violations = Vec::new();
    for (check, run) in checks::ALL {
        if let Err(what) = run(&bench).await {
            violations.push(Violation { check, what });
        }
    }
    if violations.is_empty() { Ok(()) } else { Err(violations) }
}

#[cfg(test)]
mod tests;
