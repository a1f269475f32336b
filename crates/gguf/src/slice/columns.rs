//! Tensors of which a slice takes some columns: those that have a share for every layer.

/// The same columns of every row of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Columns {
    /// Bytes of a row in the source.
    row: u64,
    /// Bytes of a row before the columns.
    skip: u64,
    /// Bytes of the columns.
    take: u64,
    rows: u64,
}

impl Columns {
    /// The columns of the layers from the first to before the second of `range`, where `row` bytes have as many for
    /// each of `layers`; `None` where they have not, or the tensor's `len` bytes are no whole rows.
    pub(super) fn of_layers(row: u64, layers: u64, range: (u32, u32), len: u64) -> Option<Self> {
        if row == 0 || layers == 0 || !row.is_multiple_of(layers) || !len.is_multiple_of(row) {
            return None;
        }
        let (share, start, end) = (row / layers, u64::from(range.0), u64::from(range.1));
        let fits = start < end && end <= layers;
        fits.then(|| Self { row, skip: share * start, take: share * (end - start), rows: len / row })
    }

    /// Bytes of the source's tensor.
    pub fn source_len(&self) -> u64 {
        self.row * self.rows
    }

    /// The pieces of the columns that lie in `len` bytes of the source from `start` on: where each begins in these
    /// bytes, where it belongs in the columns, and how long it is.
    pub fn pieces(self, start: u64, len: u64) -> impl Iterator<Item = (u64, u64, u64)> {
        let end = (start + len).min(self.source_len());
        let rows = start / self.row..end.div_ceil(self.row);
        rows.filter_map(move |row| {
            let first = row * self.row + self.skip;
            let (from, to) = (first.max(start), (first + self.take).min(end));
            (from < to).then(|| (from - start, row * self.take + (from - first), to - from))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_any_chunks_make_the_columns() {
        let (row, rows) = (12u64, 7u64);
        let source: Vec<u8> = (0..row * rows).map(|byte| byte as u8).collect();
        for (start, end) in [(0, 1), (1, 3), (2, 4), (0, 4)] {
            let columns = Columns::of_layers(row, 4, (start, end), row * rows).unwrap();
            let expected: Vec<u8> =
                source.chunks(12).flat_map(|row| row[start as usize * 3..end as usize * 3].to_vec()).collect();
            for chunk in 1..=source.len() {
                let mut found = vec![255; expected.len()];
                for (index, bytes) in source.chunks(chunk).enumerate() {
                    for (from, to, len) in columns.pieces((index * chunk) as u64, bytes.len() as u64) {
                        let piece = &bytes[from as usize..(from + len) as usize];
                        found[to as usize..(to + len) as usize].copy_from_slice(piece);
                    }
                }
                assert_eq!(found, expected, "layers {start}..{end} in chunks of {chunk}");
            }
        }
    }

    #[test]
    fn what_has_no_share_for_each_layer_has_no_columns() {
        for (row, layers, range, len) in
            [(12, 5, (0, 1), 24), (12, 4, (0, 5), 24), (12, 4, (2, 2), 24), (12, 4, (0, 1), 25), (0, 4, (0, 1), 0)]
        {
            assert_eq!(Columns::of_layers(row, layers, range, len), None);
        }
    }
}
