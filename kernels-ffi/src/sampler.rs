//! From raw logits to the distribution that a token is drawn from.
//!
//! The filters are llama.cpp's, in its usual order: top-k, top-p, min-p, temperature. The draw itself is not here: it
//! has to be a function of seed and position, and is in `mesh-engine`. Equal logits are ordered by token id, so that the
//! same logits give the same distribution in the same order.

use llama_cpp_2::sampling::LlamaSampler;
use llama_cpp_2::token::LlamaToken;
use llama_cpp_2::token::data::LlamaTokenData;
use llama_cpp_2::token::data_array::LlamaTokenDataArray;

/// Which tokens stay, and how flat their distribution is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Filter {
    /// Divides the logits; 0 or less leaves only the most likely token.
    pub temperature: f32,
    /// Keeps the k most likely; 0 keeps all.
    pub top_k: u32,
    /// Keeps the smallest set whose probability reaches this; 1 or more keeps all.
    pub top_p: f32,
    /// Drops what is less likely than this times the most likely; 0 keeps all.
    pub min_p: f32,
}

impl Filter {
    /// Whether only one token can be the result.
    pub fn is_greedy(&self) -> bool {
        self.temperature <= 0.0 || self.top_k == 1
    }
}

/// A token that may be drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Its id.
    pub token: i32,
    /// Its probability; those of a distribution sum up to 1, but for rounding.
    pub p: f64,
}

/// Why there is no distribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SampleError {
    /// A logit is not a number or infinite: the computation went wrong.
    #[error("the logits contain values that are no numbers")]
    NotFinite,
    /// Every token is excluded or impossible.
    #[error("no token is possible")]
    Empty,
}

/// Turns logits into distributions; keeps its buffers between calls.
#[derive(Debug)]
pub struct Sampler {
    candidates: LlamaTokenDataArray,
    distribution: Vec<Candidate>,
}

impl Default for Sampler {
    fn default() -> Self {
        Self::new()
    }
}

impl Sampler {
    /// A sampler with empty buffers.
    pub fn new() -> Self {
        Self { candidates: LlamaTokenDataArray::new(Vec::new(), false), distribution: Vec::new() }
    }

    /// The distribution that `filter` makes of `logits` (one per token of the vocabulary, from id 0), without the tokens
    /// in `excluded` (ascending). The most likely first; equal ones by id.
    ///
    /// # Errors
    /// [`SampleError`].
    pub fn distribution(
        &mut self,
        logits: &[f32],
        filter: &Filter,
        excluded: &[i32],
    ) -> Result<&[Candidate], SampleError> {
        // Minus infinity is what a model says of an impossible token; all else that is not finite is a fault.
        if logits.iter().any(|l| l.is_nan() || *l == f32::INFINITY) {
            return Err(SampleError::NotFinite);
        }
        self.distribution.clear();
        if filter.is_greedy() {
            let token = most_likely(logits, excluded).ok_or(SampleError::Empty)?;
            self.distribution.push(Candidate { token, p: 1.0 });
            return Ok(&self.distribution);
        }
        self.load(logits, excluded);
        if self.candidates.data.is_empty() {
            return Err(SampleError::Empty);
        }
        self.apply(filter);
        self.normalise();
        Ok(&self.distribution)
    }

    fn load(&mut self, logits: &[f32], excluded: &[i32]) {
        let candidates = &mut self.candidates;
        candidates.data.clear();
        candidates.selected = None;
        candidates.sorted = false;
        let possible = possible(logits, excluded);
        candidates.data.extend(possible.map(|(id, logit)| LlamaTokenData::new(LlamaToken(id), logit, 0.0)));
    }

    fn apply(&mut self, filter: &Filter) {
        if filter.top_k > 0 {
            let k = i32::try_from(filter.top_k).unwrap_or(i32::MAX);
            self.candidates.apply_sampler(&mut LlamaSampler::top_k(k));
        }
        if filter.top_p < 1.0 {
            self.candidates.apply_sampler(&mut LlamaSampler::top_p(filter.top_p, 1));
        }
        if filter.min_p > 0.0 {
            self.candidates.apply_sampler(&mut LlamaSampler::min_p(filter.min_p, 1));
        }
        self.candidates.apply_sampler(&mut LlamaSampler::temp(filter.temperature));
    }

    /// Softmax over what is left, in double precision and in an order that does not depend on a sorting algorithm.
    fn normalise(&mut self) {
        let data = &mut self.candidates.data;
        data.sort_unstable_by(|a, b| b.logit().total_cmp(&a.logit()).then(a.id().0.cmp(&b.id().0)));
        let max = data.first().map_or(0.0, |first| f64::from(first.logit()));
        let weigh = |d: &LlamaTokenData| Candidate { token: d.id().0, p: (f64::from(d.logit()) - max).exp() };
        self.distribution.extend(data.iter().map(weigh));
        let sum: f64 = self.distribution.iter().map(|c| c.p).sum();
        self.distribution.iter_mut().for_each(|c| c.p /= sum);
    }
}

/// Tokens that are neither excluded nor impossible.
fn possible<'a>(logits: &'a [f32], excluded: &'a [i32]) -> impl Iterator<Item = (i32, f32)> + 'a {
    let tokens = (0..i32::MAX).zip(logits.iter().copied());
    tokens.filter(|(id, logit)| *logit > f32::NEG_INFINITY && excluded.binary_search(id).is_err())
}

/// The token with the largest logit, the lowest id among equals.
fn most_likely(logits: &[f32], excluded: &[i32]) -> Option<i32> {
    let larger = |best: (i32, f32), next: (i32, f32)| if next.1 > best.1 { next } else { best };
    possible(logits, excluded).reduce(larger).map(|(id, _)| id)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Filter = Filter { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0 };

    fn tokens(logits: &[f32], filter: Filter, excluded: &[i32]) -> Vec<i32> {
        Sampler::new().distribution(logits, &filter, excluded).unwrap().iter().map(|c| c.token).collect()
    }

    #[test]
    fn greedy_takes_the_lowest_of_equals() {
        let greedy = Filter { temperature: 0.0, ..ALL };
        assert_eq!(tokens(&[1.0, 3.0, 3.0], greedy, &[]), [1]);
        assert_eq!(tokens(&[1.0, 3.0, 3.0], greedy, &[1]), [2]);
        assert_eq!(tokens(&[1.0, 3.0, 3.0], Filter { top_k: 1, ..ALL }, &[]), [1]);
    }

    #[test]
    fn without_filters_it_is_the_softmax() {
        let mut sampler = Sampler::new();
        let logits = [0.5f32, -1.0, 2.0, 2.0];
        let sum: f64 = logits.iter().map(|l| f64::from(*l).exp()).sum();
        let distribution = sampler.distribution(&logits, &ALL, &[]).unwrap();
        assert_eq!(distribution.iter().map(|c| c.token).collect::<Vec<_>>(), [2, 3, 0, 1]);
        for c in distribution {
            let expected = f64::from(logits[c.token as usize]).exp() / sum;
            assert!((c.p - expected).abs() < 1e-12, "{c:?} {expected}");
        }
        // Buffers of an earlier call leave no trace.
        assert_eq!(sampler.distribution(&[1.0, 0.0], &ALL, &[]).unwrap().len(), 2);
    }

    #[test]
    fn filters_drop_what_they_should() {
        let logits: Vec<f32> = [0.5f32, 0.3, 0.15, 0.05].iter().map(|p| p.ln()).collect();
        assert_eq!(tokens(&logits, Filter { top_k: 2, ..ALL }, &[]), [0, 1]);
        assert_eq!(tokens(&logits, Filter { top_p: 0.7, ..ALL }, &[]), [0, 1]);
        assert_eq!(tokens(&logits, Filter { min_p: 0.2, ..ALL }, &[]), [0, 1, 2]);
        assert_eq!(tokens(&logits, Filter { top_k: 3, ..ALL }, &[0]), [1, 2, 3]);
        let cold = Filter { temperature: 0.1, ..ALL };
        let p = Sampler::new().distribution(&logits, &cold, &[]).unwrap()[0].p;
        assert!(p > 0.99, "{p}");
    }

    #[test]
    fn faults_are_errors() {
        let mut sampler = Sampler::new();
        assert_eq!(sampler.distribution(&[0.0, f32::NAN], &ALL, &[]), Err(SampleError::NotFinite));
        assert_eq!(sampler.distribution(&[0.0, f32::INFINITY], &ALL, &[]), Err(SampleError::NotFinite));
        assert_eq!(sampler.distribution(&[f32::NEG_INFINITY], &ALL, &[]), Err(SampleError::Empty));
        assert_eq!(sampler.distribution(&[0.0], &ALL, &[0]), Err(SampleError::Empty));
        let greedy = Filter { temperature: 0.0, ..ALL };
        assert_eq!(sampler.distribution(&[], &greedy, &[]), Err(SampleError::Empty));
        // Impossible tokens are merely not drawn.
        assert_eq!(tokens(&[f32::NEG_INFINITY, 0.0], ALL, &[]), [1]);
    }
}
