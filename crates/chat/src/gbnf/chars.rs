//! Sets of characters, as ranges.

/// Ascending ranges of code points, none touching the next. Surrogates are in none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Chars(Vec<(u32, u32)>);

/// What is no character.
const SURROGATES: (u32, u32) = (0xd800, 0xdfff);
const LAST: u32 = 0x10_ffff;

impl Chars {
    pub(super) fn of(ranges: &[(u32, u32)]) -> Self {
        let mut sorted: Vec<_> = ranges.iter().copied().filter(|(from, to)| from <= to).collect();
        sorted.sort_unstable();
        let mut merged: Vec<(u32, u32)> = Vec::with_capacity(sorted.len());
        for (from, to) in sorted {
            match merged.last_mut() {
                Some((_, end)) if from <= end.saturating_add(1) => *end = (*end).max(to),
                _ => merged.push((from, to)),
            }
        }
        Self(merged.into_iter().flat_map(without_surrogates).collect())
    }

    pub(super) fn single(c: char) -> Self {
        Self(vec![(u32::from(c), u32::from(c))])
    }

    /// Every character.
    pub(super) fn all() -> Self {
        Self::of(&[(0, LAST)])
    }

    /// Every character that is not in it.
    pub(super) fn complement(&self) -> Self {
        let (mut gaps, mut next) = (Vec::new(), 0);
        for &(from, to) in &self.0 {
            if from > next {
                gaps.push((next, from - 1));
            }
            next = to + 1;
        }
        gaps.push((next, LAST));
        Self::of(&gaps)
    }

    /// Adds those of `other`; whether it has more than before.
    pub(super) fn add(&mut self, other: &Self) -> bool {
        if other.0.iter().all(|range| self.contains(*range)) {
            return false;
        }
        *self = Self::of(&[self.0.as_slice(), &other.0].concat());
        true
    }

    fn contains(&self, (from, to): (u32, u32)) -> bool {
        let at = self.0.partition_point(|range| range.1 < from);
        self.0.get(at).is_some_and(|range| range.0 <= from && to <= range.1)
    }

    pub(super) fn meets(&self, other: &Self) -> bool {
        let (mut left, mut right) = (self.0.as_slice(), other.0.as_slice());
        while let ([(a, b), more_left @ ..], [(c, d), more_right @ ..]) = (left, right) {
            if a <= d && c <= b {
                return true;
            }
            if b < d { left = more_left } else { right = more_right }
        }
        false
    }

    /// Whether one of its characters and one of `other` begin with the same byte in UTF-8.
    pub(super) fn begins_like(&self, other: &Self) -> bool {
        let first_byte = |code: u32| {
            let mut bytes = [0; 4];
            char::from_u32(code).map_or(0, |c| c.encode_utf8(&mut bytes).as_bytes()[0])
        };
        let bytes = |set: &Self| -> Vec<(u32, u32)> {
            // The order of characters is that of their bytes.
            set.0.iter().map(|(from, to)| (first_byte(*from).into(), first_byte(*to).into())).collect()
        };
        Self::of(&bytes(self)).meets(&Self::of(&bytes(other)))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn ranges(&self) -> &[(u32, u32)] {
        &self.0
    }
}

fn without_surrogates((from, to): (u32, u32)) -> impl Iterator<Item = (u32, u32)> {
    let to = to.min(LAST);
    let before = (from, to.min(SURROGATES.0 - 1));
    let after = (from.max(SURROGATES.1 + 1), to);
    [before, after].into_iter().filter(|(from, to)| from <= to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_ranges() {
        let set = Chars::of(&[(5, 9), (1, 2), (3, 3), (0xd000, 0xe000)]);
        assert_eq!(set.ranges(), [(1, 3), (5, 9), (0xd000, 0xd7ff), (0xe000, 0xe000)]);
        assert_eq!(set.complement().complement(), set);
        assert!(!set.meets(&set.complement()) && set.meets(&Chars::all()));
        assert!(Chars::all().complement().is_empty());
        // C3 A9 and C3 AA.
        assert!(Chars::single('é').begins_like(&Chars::single('ê')) && !Chars::single('é').meets(&Chars::single('ê')));
        assert!(!Chars::single('é').begins_like(&Chars::of(&[(0, 0x7f), (0x800, 0xffff)])));
        let mut more = Chars::single('\u{4}');
        assert!(more.add(&set) && !more.add(&Chars::single('\u{6}')));
        assert_eq!(more.ranges()[0], (1, 9));
    }
}
