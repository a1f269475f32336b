//! Rows of values in ggml's own encodings: material for tests, which need a model of every type that llama.cpp reads.

use llama_cpp_sys_2 as sys;

use crate::backend::Backend;

/// Types that hold weights, by ggml's numbers (`enum ggml_type`): floats, and what llama.cpp quantises to. Those that it
/// uses between two steps only (`q8_1`, `q8_K`), and integers, are not among them.
pub const WEIGHT_TYPES: &[u32] = &[
    sys::GGML_TYPE_F32,
    sys::GGML_TYPE_F16,
    sys::GGML_TYPE_BF16,
    sys::GGML_TYPE_Q1_0,
    sys::GGML_TYPE_Q2_0,
    sys::GGML_TYPE_Q4_0,
    sys::GGML_TYPE_Q4_1,
    sys::GGML_TYPE_Q5_0,
    sys::GGML_TYPE_Q5_1,
    sys::GGML_TYPE_Q8_0,
    sys::GGML_TYPE_MXFP4,
    sys::GGML_TYPE_NVFP4,
    sys::GGML_TYPE_Q2_K,
    sys::GGML_TYPE_Q3_K,
    sys::GGML_TYPE_Q4_K,
    sys::GGML_TYPE_Q5_K,
    sys::GGML_TYPE_Q6_K,
    sys::GGML_TYPE_TQ1_0,
    sys::GGML_TYPE_TQ2_0,
    sys::GGML_TYPE_IQ2_XXS,
    sys::GGML_TYPE_IQ2_XS,
    sys::GGML_TYPE_IQ2_S,
    sys::GGML_TYPE_IQ3_XXS,
    sys::GGML_TYPE_IQ3_S,
    sys::GGML_TYPE_IQ1_S,
    sys::GGML_TYPE_IQ1_M,
    sys::GGML_TYPE_IQ4_NL,
    sys::GGML_TYPE_IQ4_XS,
];

/// `values`, in rows of `row` values, encoded as the type with number `type_id`. `None` where that is none of
/// [`WEIGHT_TYPES`], or the values are no whole rows, or a row is no whole number of the type's blocks.
pub fn rows(type_id: u32, values: &[f32], row: usize) -> Option<Vec<u8>> {
    if !WEIGHT_TYPES.contains(&type_id) || row == 0 || values.is_empty() || !values.len().is_multiple_of(row) {
        return None;
    }
    Backend::init();
    let (n_row, n_rows) = (i64::try_from(row).ok()?, i64::try_from(values.len() / row).ok()?);
    let block = {
        // SAFETY: a type that ggml knows, as all of `WEIGHT_TYPES` are.
        unsafe { sys::ggml_blck_size(type_id) }
    };
    if block <= 0 || n_row % block != 0 {
        return None;
    }
    // SAFETY: as above, and a row is a whole number of blocks.
    let row_bytes = unsafe { sys::ggml_row_size(type_id, n_row) };
    let mut out = vec![0u8; row_bytes.checked_mul(values.len() / row)?];
    // Every value counts the same; some types insist on being told.
    let importance = vec![1f32; row];
    // SAFETY: `values` are `n_rows` rows of `n_row` values, `out` has room for as many encoded ones, `importance` has a
    // value for each of a row, and the type is one that this function knows; nothing is kept.
    let written = unsafe {
        let (from, to) = (values.as_ptr(), out.as_mut_ptr().cast());
        sys::ggml_quantize_chunk(type_id, from, to, 0, n_rows, n_row, importance.as_ptr())
    };
    (written == out.len()).then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_rows_of_known_types_are_encoded() {
        let values: Vec<f32> = (0..512).map(|value| (value as f32 - 256.0) / 256.0).collect();
        for type_id in WEIGHT_TYPES {
            let bytes = rows(*type_id, &values, 256).unwrap_or_else(|| panic!("type {type_id}"));
            assert!(bytes.iter().any(|byte| *byte != 0), "type {type_id}");
        }
        let f32s = rows(sys::GGML_TYPE_F32, &values, 256).unwrap();
        assert_eq!(f32s[4..8], values[1].to_le_bytes());
        assert_eq!(rows(sys::GGML_TYPE_Q4_0, &values, 256).unwrap().len(), 512 / 32 * 18);
        assert_eq!(rows(sys::GGML_TYPE_Q8_K, &values, 256), None);
        assert_eq!(rows(9999, &values, 256), None);
        assert_eq!(rows(sys::GGML_TYPE_Q4_K, &values, 128), None, "no whole block");
        assert_eq!(rows(sys::GGML_TYPE_F32, &values, 100), None, "no whole rows");
    }
}
