//! Looking for models that no status here tells of: when members are asked, and when not.
//!
//! A name that nobody serves must cost the mesh little, however often it is asked for: one search a name, few at the
//! same time, few in a while, and what was not found is not looked for again for some seconds.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mesh_types::ModelId;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use super::leaders::{Found, ModelKey};
use super::state::Core;
use super::swarm::Command;

/// How long a search may take, with the connection to who leads the model and its status.
const LIMIT: Duration = Duration::from_millis(1500);
/// Members are asked again, and those that they name dialled again, after so long.
const ASK_AGAIN: Duration = Duration::from_millis(400);
/// How long a name is not looked for again.
const ABSENT_FOR: Duration = Duration::from_secs(5);
const MAX_RUNNING: usize = 8;
const MAX_ABSENT: usize = 1024;
/// Searches that may begin at once, and how long each takes to be allowed again.
const BURST: u32 = 16;
const REFILL: Duration = Duration::from_millis(500);

/// Whether a search found the model; `None`: it goes on.
type Outcome = Option<bool>;

/// The searches of one node. Told the time.
pub(super) struct Searches {
    running: HashMap<ModelKey, watch::Receiver<Outcome>>,
    absent: HashMap<ModelKey, Instant>,
    budget: u32,
    refilled: Instant,
}

/// What is to be done for one who asks for a model.
pub(super) enum Turn {
    /// A search: to be run by the caller.
    Run(watch::Sender<Outcome>),
    /// To wait for the search that is under way.
    Wait(watch::Receiver<Outcome>),
    /// Nothing: it was looked for a moment ago, or there are too many searches.
    Pass,
}

impl Searches {
    pub(super) fn new(now: Instant) -> Self {
        Self { running: HashMap::new(), absent: HashMap::new(), budget: BURST, refilled: now }
    }

    /// Somebody asks for `model`.
    pub(super) fn begin(&mut self, model: ModelKey, now: Instant) -> Turn {
        if let Some(running) = self.running.get(&model) {
            return Turn::Wait(running.clone());
        }
        if self.absent.get(&model).is_some_and(|until| now < *until) || self.running.len() >= MAX_RUNNING {
            return Turn::Pass;
        }
        if !self.spend(now) {
            return Turn::Pass;
        }
        let (ended, running) = watch::channel(None);
        self.running.insert(model, running);
        Turn::Run(ended)
    }

    /// The search for `model` is over.
    pub(super) fn end(&mut self, model: ModelKey, found: bool, now: Instant) {
        self.running.remove(&model);
        self.absent.remove(&model);
        if !found {
            if self.absent.len() >= MAX_ABSENT {
                self.absent.retain(|_, until| now < *until);
            }
            if self.absent.len() < MAX_ABSENT {
                self.absent.insert(model, now + ABSENT_FOR);
            }
        }
    }

    fn spend(&mut self, now: Instant) -> bool {
        while self.budget < BURST && now >= self.refilled + REFILL {
            self.refilled += REFILL;
            self.budget += 1;
        }
        if self.budget == BURST {
            self.refilled = now;
        }
        let allowed = self.budget > 0;
        self.budget = self.budget.saturating_sub(1);
        allowed
    }
}

impl Core {
    /// Whether a present node lists `model`, after members were asked for one that leads it where none here does.
    ///
    /// # Cancel safety
    /// May be dropped; the search goes on for who else asks.
    pub(super) async fn find(self: &Arc<Self>, model: &ModelId) -> bool {
        if self.view.borrow().lists(model) {
            return true;
        }
        if self.table().present().is_empty() {
            return false;
        }
        let key = self.model_key(model);
        let turn = self.searches().begin(key, Instant::now());
        let mut outcome = match turn {
            Turn::Pass => return false,
            Turn::Wait(outcome) => outcome,
            Turn::Run(ended) => {
                let outcome = ended.subscribe();
                self.run_search(key, model.clone(), ended);
                outcome
            }
        };
        // A search that is given up closes its channel.
        outcome.wait_for(Option::is_some).await.is_ok_and(|outcome| *outcome == Some(true))
    }

    pub(super) fn model_key(&self, model: &ModelId) -> ModelKey {
        ModelKey::new(&self.membership().mesh(), model.as_str())
    }

    fn searches(&self) -> MutexGuard<'_, Searches> {
        self.searches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run_search(self: &Arc<Self>, key: ModelKey, model: ModelId, ended: watch::Sender<Outcome>) {
        let (core, closing) = (self.clone(), self.closing());
        self.tasks.own.spawn(async move {
            let search = tokio::time::timeout(LIMIT, core.search(key, &model));
            let found = matches!(closing.run_until_cancelled(search).await, Some(Ok(true)));
            tracing::debug!(%model, found, "looked for who leads a model");
            core.searches().end(key, found, Instant::now());
            ended.send_replace(Some(found));
        });
    }

    /// Asks members until one who leads the model says so itself; `false` where they know of none.
    async fn search(&self, key: ModelKey, model: &ModelId) -> bool {
        let mut view = self.view.subscribe();
        let listed = async { view.wait_for(|view| view.lists(model)).await.is_ok() };
        tokio::select! {
            biased;
            listed = listed => listed,
            () = self.ask_members(key) => false,
        }
    }

    /// Ends where members know of nobody.
    async fn ask_members(&self, key: ModelKey) {
        let mut view = self.view.subscribe();
        loop {
            view.borrow_and_update();
            let (found, answer) = oneshot::channel();
            if self.commands.send(Command::Seek { model: key, found }).await.is_err() {
                return;
            }
            match answer.await {
                // It is being dialled, and asked what it is. A dial that was under way for something else may fail.
                Ok(Found { leaders: true, .. }) => tokio::time::sleep(ASK_AGAIN).await,
                Ok(Found { answered: true, .. }) | Err(_) => return,
                // Nobody can be asked yet: those that are connected have not said who they are.
                Ok(_) => {
                    if view.changed().await.is_err() {
                        return;
                    }
                }
            }
        }
    }
}

/// The searches of a node that starts now.
pub(super) fn none() -> Mutex<Searches> {
    Mutex::new(Searches::new(Instant::now()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::MeshId;

    fn key(number: usize) -> ModelKey {
        ModelKey::new(&MeshId([0; 16]), &number.to_string())
    }

    #[test]
    fn a_name_is_looked_for_once_and_not_again_for_a_while() {
        let now = Instant::now();
        let mut searches = Searches::new(now);
        let Turn::Run(ended) = searches.begin(key(0), now) else { panic!("the first one asks") };
        assert!(matches!(searches.begin(key(0), now), Turn::Wait(_)), "others wait for its answer");
        searches.end(key(0), false, now);
        ended.send_replace(Some(false));
        assert!(matches!(searches.begin(key(0), now + ABSENT_FOR - REFILL), Turn::Pass));
        assert!(matches!(searches.begin(key(0), now + ABSENT_FOR), Turn::Run(_)));
        searches.end(key(0), true, now);
        assert!(matches!(searches.begin(key(0), now + ABSENT_FOR), Turn::Run(_)), "what was found may go");
    }

    #[test]
    fn names_that_nobody_serves_do_not_flood_the_mesh() {
        let now = Instant::now();
        let mut searches = Searches::new(now);
        let mut ask = |number: usize, now: Instant| {
            let runs = matches!(searches.begin(key(number), now), Turn::Run(_));
            searches.end(key(number), false, now);
            runs
        };
        let asked = |range: std::ops::Range<usize>, now: Instant, ask: &mut dyn FnMut(usize, Instant) -> bool| {
            range.filter(|number| ask(*number, now)).count()
        };
        assert_eq!(asked(0..5000, now, &mut ask), BURST as usize);
        assert_eq!(asked(5000..9000, now + 3 * REFILL, &mut ask), 3);
        assert_eq!(asked(0..1000, now + 1000 * REFILL, &mut ask), BURST as usize, "no more is saved up");
        assert!(searches.absent.len() <= MAX_ABSENT);
        for number in 0..MAX_RUNNING + 1 {
            let now = now + 2000 * REFILL;
            assert_eq!(matches!(searches.begin(key(number), now), Turn::Run(_)), number < MAX_RUNNING, "{number}");
        }
    }
}
