use std::io::Read;

use proptest::prelude::*;

use super::*;
use crate::craft::{Craft, model, string};
use crate::error::KeyFault;
use crate::value::{Array, Value};
use crate::{ModelInfo, SlicePlan};

fn parse(craft: &Craft) -> Result<Header, HeaderError> {
    Header::parse(&craft.file())
}

fn key_fault(craft: Craft) -> KeyFault {
    match parse(&craft) {
        Err(HeaderError::Key { why, .. }) => why,
        other => panic!("{other:?}"),
    }
}

fn tensor_fault(craft: Craft) -> TensorFault {
    match parse(&craft) {
        Err(HeaderError::Tensor { why, .. }) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_type_of_value_round_trips() {
    let mut metadata = Metadata::default();
    let values = [
        Value::U8(200),
        Value::I8(-3),
        Value::U16(60000),
        Value::I16(-300),
        Value::U32(1 << 31),
        Value::I32(-70000),
        Value::F32(0.1),
        Value::Bool(true),
        Value::String("grüße\0".into()),
        Value::Array(Array::of_bools([true, false])),
        Value::U64(u64::MAX),
        Value::I64(i64::MIN),
        Value::F64(1e300),
    ];
    for (id, value) in values.into_iter().enumerate() {
        assert_eq!(value.value_type().id(), id as u32);
        metadata.set(&format!("k{id}"), value);
    }
    let tensors = vec![
        TensorInfo::new("a", &[5], GgmlType::F32).unwrap(),
        TensorInfo::new("b", &[256, 2, 3, 4], GgmlType::from_id(12).unwrap()).unwrap(),
    ];
    let header = Header::build(metadata, tensors).unwrap();
    assert_eq!(header.tensors()[1].offset(), 32);
    assert_eq!(header.tensors()[1].n_bytes(), 144 * 24);
    assert_eq!(header.data_len(), 32 + 144 * 24);
    assert_eq!(header.to_bytes().len() as u64, header.data_offset());
    assert_eq!(Header::parse(&header.to_bytes()), Ok(header));
}

#[test]
fn a_crafted_model_reads_as_written() {
    let file = model("llama", 2, true).file();
    let header = Header::read_file(file.as_slice(), file.len() as u64).unwrap();
    assert_eq!(header.version(), 3);
    assert_eq!(header.tensors().len(), 8);
    assert_eq!(
        header.tensor("blk.1.attn_q.weight").map(|(index, tensor)| (index, tensor.dims())),
        Some((4, [8, 8].as_slice()))
    );
    assert_eq!(header.data_offset() + header.data_len(), file.len() as u64);
    assert_eq!(header.canonical().unwrap(), header);
    let mut old = file.clone();
    old[4] = 2;
    assert_eq!(Header::parse(&old).map(|header| header.version()), Ok(2));
}

#[test]
fn other_files_are_named_for_what_they_are() {
    assert_eq!(Header::parse(b""), Err(HeaderError::NotGguf));
    assert_eq!(Header::parse(b"GG"), Err(HeaderError::NotGguf));
    assert_eq!(Header::parse(b"PK\x03\x04 and so on and on"), Err(HeaderError::NotGguf));
    let mut file = model("llama", 1, false).file();
    for (version, error) in [
        (1u32, HeaderError::Version(1)),
        (4, HeaderError::Version(4)),
        (3u32.swap_bytes(), HeaderError::BigEndian),
        (0, HeaderError::Version(0)),
    ] {
        file[4..8].copy_from_slice(&version.to_le_bytes());
        assert_eq!(Header::parse(&file), Err(error));
    }
}

#[test]
fn a_cut_file_says_where_it_ends() {
    let file = model("llama", 2, false).file();
    let header = Header::parse(&file).unwrap();
    for len in 4..header.data_offset() - 32 {
        let cut = Header::read_file(&file[..len as usize], len);
        assert_eq!(cut, Err(HeaderError::HeaderCut { ends_at: len }), "{len}");
    }
    let len = file.len() as u64 - 100;
    let error = Header::read_file(&file[..len as usize], len).unwrap_err();
    // The last tensor (16 bytes) is padded by 16 more, which may be missing.
    let promised = file.len() as u64 - 16;
    assert_eq!(error, HeaderError::Truncated { ends_at: len, promised });
    let text = error.to_string();
    assert!(text.contains(&format!("ends at byte {len}")) && text.contains(&format!("promises {promised}")), "{text}");
    assert!(Header::read_file(file.as_slice(), promised).is_ok());
}

/// Counts what is read, and goes on for ever.
struct Endless<'a> {
    head: &'a [u8],
    read: u64,
}

impl Read for Endless<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let n = self.head.read(out)?;
        out[n..].fill(1);
        self.read += out.len() as u64;
        Ok(out.len())
    }
}

#[test]
fn absurd_claims_are_refused_before_anything_is_read_for_them() {
    let head = |n_tensors: u64, n_keys: u64, rest: &[u8]| {
        [b"GGUF\x03\0\0\0".as_slice(), &n_tensors.to_le_bytes(), &n_keys.to_le_bytes(), rest].concat()
    };
    let array = |element: u32, len: u64| {
        [&string("k"), 9u32.to_le_bytes().as_slice(), &element.to_le_bytes(), &len.to_le_bytes()].concat()
    };
    let big = u64::MAX.to_le_bytes();
    let long_value = [&string("k"), 8u32.to_le_bytes().as_slice(), &(1u64 << 40).to_le_bytes()].concat();
    let long_name = [&(MAX_NAME_BYTES + 1).to_le_bytes(), [b'n'; 64].as_slice()].concat();
    let cases: [(&str, Vec<u8>); 10] = [
        ("tensors", head(u64::MAX, 0, &[])),
        ("tensors", head(MAX_TENSORS + 1, 0, &[])),
        ("keys", head(0, u64::MAX, &[])),
        ("keys", head(0, MAX_KEYS + 1, &[])),
        ("a key", head(0, 1, &big)),
        ("a string", head(0, 1, &long_value)),
        ("an array", head(0, 1, &array(0, u64::MAX))),
        ("an array", head(0, 1, &array(10, 1 << 61))),
        ("an array", head(0, 1, &array(8, 1 << 60))),
        ("name", head(1, 0, &long_name)),
    ];
    for (what, head) in cases {
        // As if in a file of an exbibyte: only the caps can refuse it.
        let mut input = Endless { head: &head, read: 0 };
        let error = Header::read(&mut input, 1 << 60).unwrap_err();
        assert!(matches!(error, HeaderError::TooLarge { .. }) && error.to_string().contains(what), "{what}: {error}");
        assert!(input.read <= head.len() as u64, "{what}: {} bytes read", input.read);
        // And in a file of its own size.
        assert!(Header::parse(&head).is_err());
    }
    // Counts that the caps allow, but not the file.
    for head in [head(MAX_TENSORS, 0, &[0; 64]), head(0, MAX_KEYS, &[0; 64]), head(0, 1, &array(8, 1 << 20))] {
        let mut input = Endless { head: &head, read: 0 };
        let error = Header::read(&mut input, head.len() as u64).unwrap_err();
        assert_eq!(error, HeaderError::HeaderCut { ends_at: head.len() as u64 });
        assert!(input.read <= head.len() as u64);
    }
}

#[test]
fn a_header_cannot_go_on_for_ever() {
    // Arrays that are each within the cap, and together beyond that of the whole.
    let array = |key: &str| {
        let parts = [9u32.to_le_bytes().as_slice(), &0u32.to_le_bytes(), &MAX_VALUE_BYTES.to_le_bytes()].concat();
        std::io::Cursor::new([string(key), parts].concat()).chain(std::io::repeat(0).take(MAX_VALUE_BYTES))
    };
    let counts = [0u64.to_le_bytes(), 3u64.to_le_bytes()].concat();
    let head = [b"GGUF\x03\0\0\0".as_slice(), &counts].concat();
    let input = head.chain(array("a")).chain(array("b")).chain(array("c"));
    let error = Header::read(input, 1 << 60).unwrap_err();
    assert!(matches!(error, HeaderError::TooLarge { limit: MAX_HEADER_BYTES, .. }), "{error}");
}

#[test]
fn keys_that_cannot_be_are_refused() {
    let craft = Craft::default;
    assert_eq!(key_fault(craft().u32("a", 1).u32("b", 1).u32("a", 2)), KeyFault::Duplicate);
    assert_eq!(key_fault(craft().u32("", 1)), KeyFault::Name);
    assert_eq!(key_fault(craft().key("a", 13, &[0; 8])), KeyFault::Type(13));
    assert_eq!(key_fault(craft().array("a", 99, 1, &[0; 8])), KeyFault::Type(99));
    assert_eq!(key_fault(craft().array("a", 9, 1, &[0; 32])), KeyFault::Nested);
    let deep: Vec<u8> = [9u32.to_le_bytes().as_slice(), &1u64.to_le_bytes()].concat().repeat(100_000);
    assert_eq!(key_fault(craft().key("a", 9, &deep)), KeyFault::Nested);
    for bad in [0u32, 3, 48, 1 << 21, 1 << 31] {
        assert_eq!(parse(&craft().u32("general.alignment", bad)), Err(HeaderError::Alignment(bad.into())));
    }
    assert!(matches!(key_fault(craft().str("general.alignment", "32")), KeyFault::WrongType { .. }));

    let mut file = craft().u32("ab", 1).file();
    let at = file.windows(2).position(|window| window == b"ab").unwrap();
    file[at..at + 2].copy_from_slice(&[0xff, 0xfe]);
    assert!(matches!(Header::parse(&file), Err(HeaderError::Key { why: KeyFault::Name, .. })));
}

#[test]
fn an_alignment_of_its_own_is_kept() {
    let craft = Craft::default().u32("general.alignment", 256).tensor("a", &[3], 0, 0).tensor("b", &[3], 0, 256);
    let header = parse(&craft).unwrap();
    assert_eq!((header.alignment(), header.data_offset() % 256, header.data_len()), (256, 0, 512));
    assert_eq!(Header::parse(&header.to_bytes()), Ok(header));
}

#[test]
fn tensors_that_cannot_be_are_refused() {
    let one = |name: &str, dims: &[u64], ggml_type, offset| {
        tensor_fault(Craft::default().tensor(name, dims, ggml_type, offset))
    };
    assert_eq!(one("", &[1], 0, 0), TensorFault::Name);
    assert_eq!(one("t", &[], 0, 0), TensorFault::Dimensions(0));
    assert_eq!(one("t", &[1; 5], 0, 0), TensorFault::Dimensions(5));
    assert_eq!(one("t", &[1; 1000], 0, 0), TensorFault::Dimensions(1000));
    assert_eq!(one("t", &[32, 0], 0, 0), TensorFault::Shape(vec![32, 0]));
    assert_eq!(one("t", &[0], 2, 0), TensorFault::Shape(vec![0]));
    assert_eq!(one("t", &[u64::MAX], 0, 0), TensorFault::Shape(vec![u64::MAX]));
    let wraps = [1 << 32, 1 << 32, 1 << 32, 1 << 32];
    assert_eq!(one("t", &wraps, 24, 0), TensorFault::Shape(wraps.to_vec()));
    let wraps_to_little = [1 << 32, (1 << 32) + 1];
    assert_eq!(one("t", &wraps_to_little, 24, 0), TensorFault::Shape(wraps_to_little.to_vec()));
    assert_eq!(one("t", &[1 << 62, 2], 24, 0), TensorFault::Shape(vec![1 << 62, 2]));
    assert!(TensorInfo::new("t", &[1 << 62, 2], GgmlType::from_id(24).unwrap()).is_err());
    assert_eq!(one("t", &[32], 4, 0), TensorFault::Type(4));
    assert_eq!(one("t", &[32], u32::MAX, 0), TensorFault::Type(u32::MAX));
    assert_eq!(one("t", &[33], 2, 0), TensorFault::Block { row: 33, block: 32 });
    assert_eq!(one("t", &[32], 0, 31), TensorFault::Unaligned(31));
    assert_eq!(one("t", &[32], 0, u64::MAX - 31), TensorFault::Shape(vec![32]));

    let two = |a: u64, b: u64| Craft::default().tensor("a", &[16], 0, a).tensor("b", &[16], 0, b);
    assert_eq!(tensor_fault(two(0, 32)), TensorFault::Overlap);
    assert_eq!(tensor_fault(two(64, 64)), TensorFault::Overlap);
    // Any order and any gap is fine.
    assert!(parse(&two(128, 0)).is_ok());
    let twice = Craft::default().tensor("a", &[16], 0, 0).tensor("a", &[16], 0, 64);
    assert_eq!(tensor_fault(twice), TensorFault::Duplicate);
}

#[test]
fn a_tensor_outside_the_file_is_a_truncated_file() {
    let craft = Craft::default().tensor("a", &[16], 0, 1 << 40);
    let file = craft.file();
    let error = Header::read_file(file.as_slice(), file.len() as u64).unwrap_err();
    assert!(matches!(error, HeaderError::Truncated { .. }), "{error}");
}

#[test]
fn names_in_messages_are_short_and_printable() {
    let craft = Craft::default().str(&"x\u{1b}[31m".repeat(1000), "").str(&"x\u{1b}[31m".repeat(1000), "");
    let text = parse(&craft).unwrap_err().to_string();
    assert!(text.len() < 1000 && !text.contains('\u{1b}'), "{text}");
}

/// All that is done with a header that may come from anyone.
fn use_header(bytes: &[u8]) {
    let Ok(header) = Header::parse(bytes) else { return };
    let canonical = header.canonical().unwrap();
    // By bytes: a value may be no number, which equals nothing.
    let bytes = canonical.to_bytes();
    assert_eq!(Header::parse(&bytes).map(|header| header.to_bytes()).as_ref(), Ok(&bytes));
    if let Ok(info) = ModelInfo::of(&canonical) {
        assert!(info.layer_bytes.len() <= 512);
    }
    for (start, end) in [(0, 2), (1, 3), (2, 4), (0, 4), (1, u32::MAX)] {
        let range = mesh_types::LayerRange::new(start, end).unwrap();
        if let Ok(plan) = SlicePlan::new(&canonical, range) {
            assert!(Header::parse(plan.header()).is_ok());
            assert!(plan.weight_bytes() <= plan.file_len());
        }
    }
}

#[test]
fn a_value_that_is_no_number_travels_as_it_is() {
    use_header(&model("llama", 4, true).f32("llama.x", f32::NAN).key("llama.y", 12, &[0xff; 8]).file());
}

fn valid() -> Vec<u8> {
    model("gemma3", 4, true).u32("gemma3.attention.sliding_window", 64).file()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_mutated_header_never_panics(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = valid();
        for (at, byte) in edits {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        use_header(&bytes);
    }

    #[test]
    fn integers_replaced_by_extreme_ones_never_panic(
        at in any::<prop::sample::Index>(),
        value in prop::sample::select(vec![0, 1, 0x7f, 0xff, 0xffff, u64::from(u32::MAX), 1 << 62, u64::MAX]),
        width in prop::sample::select(vec![4usize, 8]),
    ) {
        let mut bytes = valid();
        let at = at.index(bytes.len() - width);
        bytes[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
        use_header(&bytes);
    }

    #[test]
    fn noise_never_panics(noise in prop::collection::vec(any::<u8>(), 0..400)) {
        use_header(&noise);
        use_header(&[b"GGUF\x03\0\0\0".as_slice(), &noise].concat());
        let counts = [1u64.to_le_bytes(), 1u64.to_le_bytes()].concat();
        use_header(&[b"GGUF\x03\0\0\0".as_slice(), &counts, &noise].concat());
    }
}
