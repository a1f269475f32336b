//! Drawing tokens so that a run can go on elsewhere as if nothing had happened.
//!
//! The draw for generated token `i` is a function of (seed, `i`) and the final distribution alone. Its randomness comes
//! from Philox4x32-10, a counter-based generator (J. K. Salmon et al., *Parallel random numbers: as easy as 1, 2, 3*,
//! SC'11): the seed is its key and `i` its counter, so that there is no state to carry along.
//!
//! Owns: the draw. Does not own: the filters that make the distribution (`kernels_ffi::sampler`), what a run changes in
//! the logits before them ([`crate::run`]). Start with [`Drawer`].

use std::sync::Arc;

use kernels_ffi::{Candidate, Filter, SampleError, Sampler, Vocab};
use mesh_types::{Sampling, TokenId};

/// Draws tokens from the logits of one model.
#[derive(Debug)]
pub struct Drawer {
    sampler: Sampler,
    /// Tokens that end a generation, ascending.
    end_tokens: Arc<[i32]>,
}

/// Which draw of a run it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draw {
    /// Which generated token, counted from 0.
    pub index: u32,
    /// How many drawn tokens were found impossible before, at this index.
    pub attempt: u32,
}

impl Drawer {
    /// For the model with this vocabulary.
    pub fn new(vocab: &Vocab) -> Self {
        Self::with_end_tokens(vocab.eog_tokens().into())
    }

    /// For a model whose generations end with `end_tokens` (ascending).
    pub fn with_end_tokens(end_tokens: Arc<[i32]>) -> Self {
        Self { sampler: Sampler::new(), end_tokens }
    }

    /// Draws a token from `logits`, one per token of the vocabulary; minus infinity is what cannot be drawn.
    ///
    /// # Errors
    /// [`SampleError`]: the logits are no numbers, or leave no token.
    pub fn draw(&mut self, logits: &[f32], sampling: &Sampling, draw: Draw) -> Result<TokenId, SampleError> {
        let filter = Filter {
            temperature: sampling.temperature,
            top_k: sampling.top_k,
            top_p: sampling.top_p,
            min_p: sampling.min_p,
        };
        let excluded: &[i32] = if sampling.ignore_eos { &self.end_tokens } else { &[] };
        let distribution = self.sampler.distribution(logits, &filter, excluded)?;
        pick(distribution, uniform(sampling.seed, draw)).ok_or(SampleError::Empty)
    }
}

impl From<u32> for Draw {
    /// The first draw at `index`.
    fn from(index: u32) -> Self {
        Self { index, attempt: 0 }
    }
}

/// The number in `0.0..1.0` that belongs to this draw of a run with this seed: 53 random bits.
pub fn uniform(seed: u64, draw: Draw) -> f64 {
    let key = [seed as u32, (seed >> 32) as u32];
    let [low, high, ..] = philox4x32_10([draw.index, draw.attempt, 0, 0], key);
    let bits = (u64::from(high) << 32 | u64::from(low)) >> 11;
    bits as f64 / (1u64 << 53) as f64
}

/// The token at `u` of the distribution's cumulative sum, in its own order.
fn pick(distribution: &[Candidate], u: f64) -> Option<TokenId> {
    let total: f64 = distribution.iter().map(|candidate| candidate.p).sum();
    let mut sum = 0.0;
    let reached = |candidate: &&Candidate| {
        sum += candidate.p;
        sum > u * total
    };
    // Rounding may leave the sum short of `u * total` by a hair: the last possible token then.
    let found = distribution.iter().find(reached).or_else(|| distribution.iter().rfind(|candidate| candidate.p > 0.0));
    found.map(|candidate| TokenId(candidate.token))
}

fn philox4x32_10(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for round in 0..10 {
        if round > 0 {
            key = [key[0].wrapping_add(0x9e37_79b9), key[1].wrapping_add(0xbb67_ae85)];
        }
        let first = u64::from(counter[0]) * 0xd251_1f53;
        let second = u64::from(counter[2]) * 0xcd9e_8d57;
        counter = [
            (second >> 32) as u32 ^ counter[1] ^ key[0],
            second as u32,
            (first >> 32) as u32 ^ counter[3] ^ key[1],
            first as u32,
        ];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers that the generator's authors publish with it (Random123, `kat_vectors`).
    #[test]
    fn the_generator_is_philox() {
        assert_eq!(philox4x32_10([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        let ones = u32::MAX;
        assert_eq!(philox4x32_10([ones; 4], [ones; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        let counter = [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344];
        let expected = [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1];
        assert_eq!(philox4x32_10(counter, [0xa409_3822, 0x299f_31d0]), expected);
    }

    fn drawer() -> Drawer {
        Drawer::with_end_tokens([0, 3].into())
    }

    /// Flat enough for every filter to leave several tokens.
    fn logits() -> Vec<f32> {
        (0..50).map(|i| (i as f32 * 0.7).sin() * 2.0).collect()
    }

    #[test]
    fn a_draw_depends_on_seed_and_index_alone() {
        let sampling = Sampling { seed: 7, ..Sampling::default() };
        let draw = |drawer: &mut Drawer, index| drawer.draw(&logits(), &sampling, Draw::from(index)).unwrap();
        let mut one = drawer();
        let forwards: Vec<_> = (0..100).map(|i| draw(&mut one, i)).collect();
        // Another drawer, in another order: as after a run moved.
        let mut other = drawer();
        let mut backwards: Vec<_> = (0..100).rev().map(|i| draw(&mut other, i)).collect();
        backwards.reverse();
        assert_eq!(forwards, backwards);
        let mut distinct = forwards.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert!(distinct.len() > 5, "{distinct:?}");
        let reseeded = Sampling { seed: 8, ..sampling };
        let others: Vec<_> = (0..100).map(|i| one.draw(&logits(), &reseeded, Draw::from(i)).unwrap()).collect();
        assert_ne!(forwards, others);
    }

    #[test]
    fn another_attempt_is_another_draw() {
        let u = |attempt| uniform(7, Draw { index: 3, attempt });
        assert_eq!(u(0), uniform(7, Draw::from(3)));
        assert!(u(0) != u(1) && u(1) != u(2));
    }

    #[test]
    fn draws_follow_the_distribution() {
        let p = [0.4, 0.3, 0.2, 0.07, 0.03];
        let logits: Vec<f32> = p.iter().map(|p: &f64| p.ln() as f32).collect();
        let all = Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, ..Sampling::default() };
        // Once over the indices of a run, once over the seeds of many.
        let n = 20_000u32;
        let by_index: Box<dyn Fn(u32) -> (u64, u32)> = Box::new(|i| (1234, i));
        let by_seed: Box<dyn Fn(u32) -> (u64, u32)> = Box::new(|i| (u64::from(i), 5));
        for draw in [by_index, by_seed] {
            let mut counts = [0u32; 5];
            let mut drawer = drawer();
            for i in 0..n {
                let (seed, index) = draw(i);
                counts[drawer.draw(&logits, &Sampling { seed, ..all }, Draw::from(index)).unwrap().0 as usize] += 1;
            }
            let term = |(count, p): (&u32, f64)| (f64::from(*count) - p * f64::from(n)).powi(2) / (p * f64::from(n));
            let chi_square: f64 = counts.iter().zip(p).map(term).sum();
            // 4 degrees of freedom: exceeded once in a thousand.
            assert!(chi_square < 18.47, "{chi_square} {counts:?}");
        }
    }

    #[test]
    fn one_candidate_is_the_greedy_choice() {
        let (logits, greedy) = (logits(), Sampling::greedy());
        for seed in 0..50 {
            let top_1 = Sampling { top_k: 1, temperature: 1.5, seed, ..Sampling::default() };
            let tiny_p = Sampling { top_p: 1e-6, seed, ..Sampling::default() };
            let mut drawer = drawer();
            let expected = drawer.draw(&logits, &greedy, Draw::from(3)).unwrap();
            assert_eq!(drawer.draw(&logits, &top_1, Draw::from(3)).unwrap(), expected);
            assert_eq!(drawer.draw(&logits, &tiny_p, Draw::from(3)).unwrap(), expected);
        }
    }

    #[test]
    fn end_tokens_are_never_drawn_where_they_are_ignored() {
        let logits = [9.0, 1.0, 1.0, 9.0, 0.5];
        let mut drawer = drawer();
        for sampling in [Sampling::default(), Sampling::greedy()] {
            assert!([0, 3].contains(&drawer.draw(&logits, &sampling, Draw::from(0)).unwrap().0));
            let ignoring = Sampling { ignore_eos: true, ..sampling };
            for index in 0..200 {
                assert!([1, 2, 4].contains(&drawer.draw(&logits, &ignoring, Draw::from(index)).unwrap().0));
            }
        }
    }

    #[test]
    fn the_edges_of_the_cumulative_sum_are_safe() {
        let candidate = |token, p| Candidate { token, p };
        let distribution = [candidate(1, 0.5), candidate(2, 0.5), candidate(3, 0.0)];
        assert_eq!(pick(&distribution, 0.0), Some(TokenId(1)));
        assert_eq!(pick(&distribution, 0.5), Some(TokenId(2)));
        assert_eq!(pick(&distribution, 1.0), Some(TokenId(2)), "what is impossible is not drawn");
        assert_eq!(pick(&[], 0.5), None);
        let numbers = (0..10_000).map(|i| uniform(u64::MAX, Draw::from(i)));
        assert!(numbers.into_iter().all(|u| (0.0..1.0).contains(&u)));
    }
}
