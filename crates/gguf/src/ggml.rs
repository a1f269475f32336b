//! The types of tensor values that llama.cpp stores: id, name, block size and bytes per block.

/// A value type of ggml (`enum ggml_type`) that may stand in a file. Rows are stored as whole blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GgmlType {
    id: u32,
    name: &'static str,
    block: u32,
    bytes: u32,
}

/// `enum ggml_type` and `sizeof(block_*)` of `ggml-common.h`. Ids that are not here were removed from the format, or
/// are newer than this table.
const TYPES: [GgmlType; 35] = [
    row(0, "f32", 1, 4),
    row(1, "f16", 1, 2),
    row(2, "q4_0", 32, 18),
    row(3, "q4_1", 32, 20),
    row(6, "q5_0", 32, 22),
    row(7, "q5_1", 32, 24),
    row(8, "q8_0", 32, 34),
    row(9, "q8_1", 32, 36),
    row(10, "q2_K", 256, 84),
    row(11, "q3_K", 256, 110),
    row(12, "q4_K", 256, 144),
    row(13, "q5_K", 256, 176),
    row(14, "q6_K", 256, 210),
    row(15, "q8_K", 256, 292),
    row(16, "iq2_xxs", 256, 66),
    row(17, "iq2_xs", 256, 74),
    row(18, "iq3_xxs", 256, 98),
    row(19, "iq1_s", 256, 50),
    row(20, "iq4_nl", 32, 18),
    row(21, "iq3_s", 256, 110),
    row(22, "iq2_s", 256, 82),
    row(23, "iq4_xs", 256, 136),
    row(24, "i8", 1, 1),
    row(25, "i16", 1, 2),
    row(26, "i32", 1, 4),
    row(27, "i64", 1, 8),
    row(28, "f64", 1, 8),
    row(29, "iq1_m", 256, 56),
    row(30, "bf16", 1, 2),
    row(34, "tq1_0", 256, 54),
    row(35, "tq2_0", 256, 66),
    row(39, "mxfp4", 32, 17),
    row(40, "nvfp4", 64, 36),
    row(41, "q1_0", 128, 18),
    row(42, "q2_0", 64, 18),
];

const fn row(id: u32, name: &'static str, block: u32, bytes: u32) -> GgmlType {
    GgmlType { id, name, block, bytes }
}

impl GgmlType {
    /// 32-bit floats.
    pub const F32: Self = TYPES[0];

    /// The type with this id, if it is one that a file may hold.
    pub fn from_id(id: u32) -> Option<Self> {
        TYPES.iter().find(|row| row.id == id).copied()
    }

    /// All types, in the order of their ids.
    pub fn all() -> &'static [Self] {
        &TYPES
    }

    /// The id in a file; `enum ggml_type`.
    pub fn id(self) -> u32 {
        self.id
    }

    /// llama.cpp's name for it, as in `q4_K`.
    pub fn name(self) -> &'static str {
        self.name
    }

    /// Values in one block.
    pub fn block_size(self) -> u32 {
        self.block
    }

    /// Bytes of one block.
    pub fn block_bytes(self) -> u32 {
        self.bytes
    }

    /// Bytes of a row of `values` values; `None` where that is no whole number of blocks, or too many.
    pub fn row_bytes(self, values: u64) -> Option<u64> {
        let block = u64::from(self.block);
        values.is_multiple_of(block).then(|| (values / block).checked_mul(u64::from(self.bytes))).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_unique_and_found() {
        for window in TYPES.windows(2) {
            assert!(window[0].id < window[1].id);
        }
        for ty in TYPES {
            assert_eq!(GgmlType::from_id(ty.id), Some(ty));
        }
        for removed in [4, 5, 31, 32, 33, 36, 37, 38, 43, u32::MAX] {
            assert_eq!(GgmlType::from_id(removed), None);
        }
    }

    #[test]
    fn rows_are_whole_blocks() {
        let q4_k = GgmlType::from_id(12).unwrap();
        assert_eq!(q4_k.row_bytes(512), Some(288));
        assert_eq!(q4_k.row_bytes(511), None);
        assert_eq!(GgmlType::F32.row_bytes(u64::MAX), None);
    }
}
