use std::fs;
use std::ops::ControlFlow;

use tempfile::TempDir;

use super::*;
use crate::craft::{Craft, model};
use crate::{Manifest, Value};

fn header(craft: &Craft) -> Header {
    Header::parse(&craft.file()).unwrap().canonical().unwrap()
}

fn range(start: u32, end: u32) -> LayerRange {
    LayerRange::new(start, end).unwrap()
}

/// The slice's own header.
fn sliced(craft: &Craft, start: u32, end: u32) -> Header {
    let plan = SlicePlan::new(&header(craft), range(start, end)).unwrap();
    Header::parse(plan.header()).unwrap()
}

fn names(plan: &SlicePlan, hole: bool) -> Vec<&str> {
    plan.parts().iter().filter(|part| (part.bytes == Bytes::Hole) == hole).map(|part| part.name.as_str()).collect()
}

fn ints(header: &Header, key: &str) -> Vec<i128> {
    header.metadata().array(key).unwrap().unwrap().ints().unwrap().collect()
}

#[test]
fn a_stage_that_is_not_last_has_no_vocabulary_even_if_it_is_the_first() {
    for (start, end) in [(0, 2), (1, 3)] {
        let plan = SlicePlan::new(&header(&model("llama", 4, true)), range(start, end)).unwrap();
        assert_eq!(plan.kind(), SliceKind::Rows);
        assert_eq!(plan.boundary().tap, "l_out-1");
        assert_eq!(names(&plan, true), ["token_embd.weight", "output.weight"]);
        let kept = [
            "blk.0.attn_norm.weight",
            "blk.0.attn_q.weight",
            "blk.1.attn_norm.weight",
            "blk.1.attn_q.weight",
            "output_norm.weight",
            "rope_freqs.weight",
        ];
        assert_eq!(names(&plan, false), kept);

        let sliced = Header::parse(plan.header()).unwrap();
        let (_, embedding) = sliced.tensor("token_embd.weight").unwrap();
        assert_eq!((embedding.dims(), embedding.ggml_type()), ([8, 32].as_slice(), GgmlType::F32));
        assert_eq!(sliced.tensor("output.weight").unwrap().1.dims(), [8, 32]);
        let metadata = sliced.metadata();
        assert_eq!(metadata.u32("llama.block_count"), Ok(Some(2)));
        assert_eq!(metadata.u32("llama.vocab_size"), Ok(Some(32)));
        let tokenizer: Vec<_> = metadata.iter().filter(|(key, _)| key.starts_with("tokenizer.")).collect();
        assert_eq!(tokenizer, [("tokenizer.ggml.model", &Value::from("none"))]);
        let lengths = [100 + i128::from(start), 101 + i128::from(start)];
        assert_eq!(ints(&sliced, "llama.feed_forward_length"), lengths);
        assert_eq!(plan.weight_bytes(), (2 * 72 + 12) * 4);
        assert_eq!(plan.file_len(), sliced.data_offset() + sliced.data_len());
    }
}

#[test]
fn a_tied_model_gets_no_head_where_it_had_none() {
    let plan = SlicePlan::new(&header(&model("llama", 4, false)), range(1, 3)).unwrap();
    assert_eq!(names(&plan, true), ["token_embd.weight"]);
}

#[test]
fn the_last_stage_keeps_vocabulary_and_head() {
    let craft = model("llama", 4, true);
    let plan = SlicePlan::new(&header(&craft), range(3, 4)).unwrap();
    assert_eq!(plan.kind(), SliceKind::Last);
    assert_eq!(names(&plan, true), ["token_embd.weight"]);
    assert!(names(&plan, false).contains(&"output.weight"));
    let sliced = Header::parse(plan.header()).unwrap();
    assert_eq!(sliced.tensor("token_embd.weight").unwrap().1.dims(), [8, 40]);
    assert_eq!(sliced.metadata().array("tokenizer.ggml.tokens").unwrap().unwrap().len(), 40);
    assert_eq!(sliced.metadata().get("llama.vocab_size"), None);

    let tied = SlicePlan::new(&header(&model("llama", 4, false)), range(3, 4)).unwrap();
    assert!(names(&tied, true).is_empty());
    assert!(names(&tied, false).contains(&"token_embd.weight"));
}

#[test]
fn a_first_stage_that_takes_tokens_keeps_the_vocabulary_but_no_head() {
    let header = header(&model("llama", 4, true));
    let info = ModelInfo::of(&header).unwrap();
    let by_tokens = Family { input: Input::Tokens, ..*Family::of(&header).unwrap() };
    let kind = SliceKind::of(&by_tokens, range(0, 2), 4);
    assert_eq!(kind, SliceKind::Tokens);
    let cut = Cut { kind, start: 0, end: 2, lead: false };
    let (tensors, sources) = Tensors::cut(&header, &info, cut).unwrap();
    let of = |name: &str| tensors.iter().position(|tensor| tensor.name() == name).map(|at| (&tensors[at], sources[at]));
    assert_eq!(of("token_embd.weight").unwrap().1, Bytes::Source { tensor: 0 });
    let (head, bytes) = of("output.weight").unwrap();
    assert_eq!((head.dims(), bytes), ([8, 40].as_slice(), Bytes::Hole));
    let metadata = metadata::cut(&header, Family::of(&header).unwrap(), &info, cut).unwrap();
    assert_eq!(metadata.str("tokenizer.ggml.model"), Ok(Some("llama")));
    assert_eq!(SliceKind::of(&by_tokens, range(2, 3), 4), SliceKind::Rows);
    assert_eq!(SliceKind::of(&by_tokens, range(2, 4), 4), SliceKind::Last);
}

#[test]
fn all_layers_are_the_whole_model() {
    let header = header(&model("llama", 4, true));
    let plan = SlicePlan::new(&header, range(0, 4)).unwrap();
    assert_eq!(plan.kind(), SliceKind::Whole);
    assert_eq!(plan.header(), header.to_bytes());
    assert!(names(&plan, true).is_empty());
}

#[test]
fn a_period_becomes_an_explicit_pattern() {
    let key = "gemma3.attention.sliding_window_pattern";
    let windowed = || model("gemma3", 8, false).u32("gemma3.attention.sliding_window", 64);
    // Layer 5 of the model attends to everything, wherever it stands in the slice.
    assert_eq!(ints(&sliced(&windowed(), 3, 8), key), [1, 1, 0, 1, 1]);
    assert_eq!(ints(&sliced(&windowed().u32(key, 3), 1, 7), key), [1, 0, 1, 1, 0, 1]);
    assert_eq!(ints(&sliced(&windowed().u32(key, 0), 1, 3), key), [1, 1]);
    let explicit = windowed().array(key, 7, 8, &[1, 0, 0, 1, 1, 0, 1, 1]);
    assert_eq!(ints(&sliced(&explicit, 2, 5), key), [0, 1, 1]);
    // No layer with a window, no window: llama.cpp would end the process.
    for craft in [windowed(), explicit] {
        for key in [key, "gemma3.attention.sliding_window"] {
            assert_eq!(sliced(&craft, 5, 6).metadata().get(key), None);
        }
    }
    // No window, no pattern.
    assert_eq!(sliced(&model("gemma3", 8, false), 2, 5).metadata().get(key), None);
    assert_eq!(
        sliced(&model("gemma3", 8, false).u32("gemma3.attention.sliding_window", 0), 2, 5).metadata().get(key),
        None
    );
}

#[test]
fn what_follows_from_the_whole_model_is_said() {
    // Which layers are recurrent, where an interval says so.
    let key = "qwen3next.attention.recurrent_layers";
    assert_eq!(ints(&sliced(&model("qwen3next", 12, false), 5, 10), key), [1, 1, 0, 1, 1]);
    // What scales the input of the first stage must not scale rows.
    let scale = |craft: &Craft, start, end| sliced(craft, start, end).metadata().f32("granite.embedding_scale");
    let granite = model("granite", 4, false).f32("granite.embedding_scale", 12.0);
    assert_eq!([scale(&granite, 0, 2), scale(&granite, 2, 4)], [Ok(Some(12.0)), Ok(Some(1.0))]);
    assert_eq!(scale(&model("granite", 4, false), 2, 4), Ok(None));
    let minicpm = |craft: &Craft, start, end, key: &str| sliced(craft, start, end).metadata().f32(key);
    let craft = model("minicpm", 4, false);
    assert_eq!(minicpm(&craft, 0, 1, "minicpm.embedding_scale"), Ok(None));
    assert_eq!(minicpm(&craft, 1, 2, "minicpm.embedding_scale"), Ok(Some(1.0)));
    assert_eq!(minicpm(&craft, 1, 2, "minicpm.residual_scale"), Ok(Some(0.7)));
    // DeepSeek-V2-Lite has no low-rank query, whatever its file says.
    let deepseek = |layers, start, end, key: &str| {
        let craft = model("deepseek2", layers, false).u32("deepseek2.attention.q_lora_rank", 5);
        sliced(&craft, start, end).metadata().u32(&format!("deepseek2.{key}"))
    };
    assert_eq!(deepseek(27, 0, 9, "attention.q_lora_rank"), Ok(Some(0)));
    assert_eq!(deepseek(28, 0, 9, "attention.q_lora_rank"), Ok(Some(5)));
    assert_eq!(deepseek(28, 0, 9, "expert_gating_func"), Ok(Some(1)));
}

#[test]
fn learned_positions_are_added_once() {
    let craft = model("gpt2", 4, true).f32s("position_embd.weight", &[8, 64]);
    let holes = |start, end| {
        let plan = SlicePlan::new(&header(&craft), range(start, end)).unwrap();
        names(&plan, true).contains(&"position_embd.weight")
    };
    assert_eq!([holes(0, 2), holes(1, 3), holes(2, 4)], [false, true, true]);
}

#[test]
fn arrays_with_an_entry_a_layer_are_cut_and_others_kept() {
    let craft = model("llama", 4, false)
        .u32s("llama.attention.head_count_kv", &[1, 2, 1, 2])
        .u32s("llama.rope.dimension_sections", &[9, 8, 7, 6])
        .u32s("llama.something.else", &[5, 6, 7])
        .u32s("general.four", &[1, 2, 3, 4])
        .u32("llama.leading_dense_block_count", 2);
    let cut = sliced(&craft, 1, 4);
    assert_eq!(ints(&cut, "llama.attention.head_count_kv"), [2, 1, 2]);
    assert_eq!(ints(&cut, "llama.rope.dimension_sections"), [9, 8, 7, 6]);
    assert_eq!(ints(&cut, "llama.something.else"), [5, 6, 7]);
    assert_eq!(ints(&cut, "general.four"), [1, 2, 3, 4]);
    let leading = |start, end| sliced(&craft, start, end).metadata().u32("llama.leading_dense_block_count");
    assert_eq!([leading(0, 1), leading(1, 4), leading(2, 4)], [Ok(Some(1)), Ok(Some(1)), Ok(Some(0))]);

    let bad = header(&model("llama", 4, false).u32s("llama.expert_used_count", &[1, 2, 3]));
    let error = SlicePlan::new(&bad, range(0, 2)).unwrap_err().to_string();
    assert!(error.contains("3 entries for 4 layers"), "{error}");
}

#[test]
fn layers_that_predict_further_tokens_stay_with_the_last_stage() {
    let craft = model("llama", 5, true).u32("llama.nextn_predict_layers", 1);
    let last = sliced(&craft, 2, 4);
    assert_eq!(last.metadata().u32("llama.block_count"), Ok(Some(3)));
    assert_eq!(last.metadata().u32("llama.nextn_predict_layers"), Ok(Some(1)));
    assert!(last.tensor("blk.2.attn_q.weight").is_some());
    assert_eq!(ints(&last, "llama.feed_forward_length"), [102, 103, 104]);
    let first = sliced(&craft, 0, 2);
    assert_eq!(first.metadata().u32("llama.block_count"), Ok(Some(2)));
    assert_eq!(first.metadata().u32("llama.nextn_predict_layers"), Ok(Some(0)));
    assert!(SlicePlan::new(&header(&craft), range(2, 5)).is_err());
}

#[test]
fn models_that_cannot_be_cut_say_why() {
    let text = |craft: &Craft, start, end| SlicePlan::new(&header(craft), range(start, end)).unwrap_err().to_string();
    assert!(text(&model("llama", 4, true), 2, 5).contains("layers 2-4 cannot be a stage of this model of 4 layers"));
    assert!(text(&model("nonesuch", 4, true), 0, 2).contains("nonesuch"));
    assert!(text(&model("rwkv7", 4, true), 0, 2).contains("more than one row a token"));
    // More layers are claimed than there are tensors for.
    let gap = model("llama", 1, true).u32s("llama.x", &[]).tensor("blk.3.x", &[8], 0, 1 << 20);
    let mut bytes = gap.file();
    let at = bytes.windows(17).position(|window| window == b"llama.block_count").unwrap() + 17 + 4;
    bytes[at..at + 4].copy_from_slice(&4u32.to_le_bytes());
    let error = SlicePlan::new(&Header::parse(&bytes).unwrap(), range(1, 3)).unwrap_err().to_string();
    assert!(error.contains("`blk.1.*` is missing"), "{error}");
    // A tensor over the vocabulary that no rule covers.
    let odd = model("llama", 4, true).f32s("odd.weight", &[8, 40]);
    assert!(text(&odd, 1, 2).contains("odd.weight"));
    // An embedding that is not what the metadata says.
    let mut bytes = model("llama", 4, true).file();
    let at = bytes.windows(17).position(|window| window == b"token_embd.weight").unwrap() + 17 + 4 + 8;
    bytes[at..at + 8].copy_from_slice(&39u64.to_le_bytes());
    let error = SlicePlan::new(&Header::parse(&bytes).unwrap(), range(1, 3)).unwrap_err().to_string();
    assert!(error.contains("has the shape [8, 39] where the metadata says [8, 40]"), "{error}");
}

#[test]
fn an_id_depends_on_source_and_range() {
    let id = |digest: u8, start, end| SliceId::new(Digest([digest; 32]), range(start, end));
    assert_eq!(id(1, 0, 2), id(1, 0, 2));
    assert_ne!(id(1, 0, 2), id(2, 0, 2));
    assert_ne!(id(1, 0, 2), id(1, 0, 3));
    // Pinned: another value is another slicer version.
    assert_eq!(id(1, 0, 2).to_string(), "cf77c4cf102e8bce61b5814de0b0e1d74c3810d68cef31d4e46a7e7e1817f296");
}

fn source(folder: &TempDir, craft: &Craft) -> Source {
    let path = folder.path().join("source.gguf");
    fs::write(&path, craft.file()).unwrap();
    Source::open(&path).unwrap()
}

#[test]
fn a_written_slice_holds_the_sources_bytes() {
    let folder = TempDir::new().unwrap();
    // A tensor of two chunks, the second one short.
    let craft = model("llama", 3, true).f32s("blk.1.big.weight", &[1024, 2100]);
    let source = source(&folder, &craft);
    let plan = SlicePlan::new(source.header(), range(1, 2)).unwrap();
    let target = folder.path().join("slice.gguf");
    let mut steps = Vec::new();
    plan.write(&source, &target, &mut |progress| {
        steps.push(progress.done);
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(steps.last(), Some(&plan.weight_bytes()));
    assert_eq!(steps.len(), 6);

    assert_eq!(fs::metadata(&target).unwrap().len(), plan.file_len());
    let slice = Source::open(&target).unwrap();
    for (index, part) in plan.parts().iter().enumerate() {
        let mut written = vec![1; part.len as usize];
        slice.read(index, 0, &mut written).unwrap();
        let mut expected = vec![0; part.len as usize];
        if let Bytes::Source { tensor } = part.bytes {
            source.read(tensor, 0, &mut expected).unwrap();
        }
        assert!(written == expected, "{}", part.name);
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
}

#[test]
fn a_cancelled_slice_leaves_nothing() {
    let folder = TempDir::new().unwrap();
    let source = source(&folder, &model("llama", 3, true));
    let plan = SlicePlan::new(source.header(), range(1, 2)).unwrap();
    let result = plan.write(&source, &folder.path().join("slice.gguf"), &mut |_| ControlFlow::Break(()));
    assert!(matches!(result, Err(Error::Cancelled)));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_source_that_changes_meanwhile_gives_no_slice() {
    let folder = TempDir::new().unwrap();
    let source = source(&folder, &model("llama", 3, true));
    let plan = SlicePlan::new(source.header(), range(1, 2)).unwrap();
    let target = folder.path().join("slice.gguf");
    let result = plan.write(&source, &target, &mut |_| {
        fs::File::options().append(true).open(source.path()).unwrap().set_len(1 << 20).unwrap();
        ControlFlow::Continue(())
    });
    assert!(matches!(result, Err(Error::Changed { .. })));
    assert!(!target.exists());
}

#[test]
fn a_slice_is_finished_only_when_every_chunk_is_there() {
    let folder = TempDir::new().unwrap();
    let source = source(&folder, &model("llama", 3, true).f32s("blk.1.big.weight", &[1024, 2100]));
    let plan = SlicePlan::new(source.header(), range(1, 2)).unwrap();
    let (partial, target) = (folder.path().join("slice.partial"), folder.path().join("slice.gguf"));
    let writer = SliceWriter::create(&plan, &partial).unwrap();
    let hole = plan.parts().iter().position(|part| part.bytes == Bytes::Hole).unwrap();
    let big = plan.parts().iter().position(|part| part.name == "blk.0.big.weight").unwrap();
    let chunk = vec![7; CHUNK_BYTES as usize];
    for (part, chunk, bytes) in [
        (big, 0, &chunk[1..]),
        (big, 1, &chunk),
        (big, 2, &[]),
        (big, u64::MAX, &[]),
        (hole, 0, &[0; 32]),
        (99, 0, &[]),
    ] {
        assert!(matches!(writer.write_chunk(part, chunk, bytes), Err(Error::NoSuchChunk { .. })));
    }
    // In any order, and again.
    let rest = (plan.parts()[big].len - CHUNK_BYTES) as usize;
    writer.write_chunk(big, 1, &chunk[..rest]).unwrap();
    writer.write_chunk(big, 0, &chunk).unwrap();
    writer.write_chunk(big, 0, &chunk).unwrap();
    assert_eq!(writer.missing_bytes(), plan.weight_bytes() - plan.parts()[big].len);
    let error = writer.finish(&target).unwrap_err();
    assert!(matches!(error, Error::Incomplete { missing: 4 }), "{error}");
    assert!(!target.exists());
}

fn manifest(source: &Source) -> Manifest {
    Manifest::compute(source, &mut on).unwrap()
}

fn on(_: crate::Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

#[test]
fn an_unfinished_slice_is_taken_up_again_chunk_by_chunk() {
    let folder = TempDir::new().unwrap();
    let source = source(&folder, &model("llama", 3, true).f32s("blk.1.big.weight", &[1024, 5000]));
    let plan = SlicePlan::new(source.header(), range(1, 2)).unwrap();
    let manifest = manifest(&source);
    let (partial, target) = (folder.path().join("slice.partial"), folder.path().join("slice.gguf"));
    plan.write(&source, &target, &mut on).unwrap();
    let expected = fs::read(&target).unwrap();
    let resume = || SliceWriter::resume(&plan, &partial, &manifest, &mut on).unwrap();
    let finish = |writer: SliceWriter| {
        writer.copy_missing(&source, &mut on).unwrap();
        writer.finish(&target).unwrap();
        assert!(fs::read(&target).unwrap() == expected);
        assert!(!partial.exists());
    };

    // Nothing is there yet; then all but the last chunk of the last part.
    assert_eq!(resume().missing_bytes(), plan.weight_bytes());
    let mut left = plan.weight_bytes();
    let stopped = resume().copy_missing(&source, &mut |progress| {
        left = progress.total - progress.done;
        if progress.done > 9 << 20 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert!(matches!(stopped, Err(Error::Cancelled)) && left > 0);
    let writer = resume();
    assert_eq!(writer.missing_bytes(), left);
    finish(writer);

    // A byte that is not as it should be costs its chunk, and a shorter or other file everything.
    let big = plan.parts().iter().find(|part| part.name == "blk.0.big.weight").unwrap();
    let mut bad = expected.clone();
    bad[(big.offset + CHUNK_BYTES) as usize + 17] ^= 1;
    fs::write(&partial, &bad).unwrap();
    let writer = resume();
    let missing: Vec<_> =
        writer.missing().iter().map(|job| (plan.parts()[job.part].name.as_str(), job.chunk)).collect();
    assert_eq!(missing, [("blk.0.big.weight", 1)]);
    finish(writer);
    let mut other = expected.clone();
    other[30] ^= 1;
    for bytes in [&expected[..expected.len() - 1], &other] {
        fs::write(&partial, bytes).unwrap();
        let writer = resume();
        assert_eq!(writer.missing_bytes(), plan.weight_bytes());
        finish(writer);
    }
}

#[test]
fn a_slice_has_two_names_until_it_is_on_the_disk() {
    let folder = TempDir::new().unwrap();
    let source = source(&folder, &model("llama", 3, true));
    let plan = SlicePlan::new(source.header(), range(1, 2)).unwrap();
    let (partial, target) = (folder.path().join("slice.partial"), folder.path().join("slice.gguf"));
    let writer = SliceWriter::create(&plan, &partial).unwrap();
    writer.copy_missing(&source, &mut on).unwrap();
    let unsynced = writer.publish(&target).unwrap();
    assert!(target.exists() && partial.exists());
    unsynced.sync().unwrap();
    assert!(target.exists() && !partial.exists());
    assert!(Source::open(&target).is_ok());
}

#[test]
fn zeros_stay_holes_and_are_known_when_a_slice_is_taken_up_again() {
    let folder = TempDir::new().unwrap();
    let craft = model("llama", 3, true);
    // A layer's tensor of 64 MiB that nobody wrote, in a file that ends there.
    let end = craft.f32s_end();
    let craft = craft.tensor("blk.1.holed.weight", &[4096, 4096], 0, end);
    let path = folder.path().join("holed.gguf");
    fs::write(&path, craft.file()).unwrap();
    let header = Header::parse(&craft.file()).unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_len(header.data_offset() + header.data_len()).unwrap();
    let source = Source::open(&path).unwrap();
    let plan = SlicePlan::new(source.header(), range(1, 2)).unwrap();
    let manifest = manifest(&source);
    let partial = folder.path().join("slice.partial");
    let writer = SliceWriter::create(&plan, &partial).unwrap();
    writer.copy_missing(&source, &mut on).unwrap();
    drop(writer);
    let taken = crate::copy::allocated_bytes(&fs::metadata(&partial).unwrap());
    assert!(taken < 1 << 20 || cfg!(not(target_os = "linux")), "{taken} bytes on the disk");
    assert_eq!(SliceWriter::resume(&plan, &partial, &manifest, &mut on).unwrap().missing(), []);
    // From the network as well.
    let writer = SliceWriter::create(&plan, &partial).unwrap();
    for job in writer.missing() {
        let mut bytes = vec![0; job.len as usize];
        source.read(job.tensor, job.chunk * CHUNK_BYTES, &mut bytes).unwrap();
        writer.write_chunk(job.part, job.chunk, &bytes).unwrap();
    }
    let taken = crate::copy::allocated_bytes(&fs::metadata(&partial).unwrap());
    assert!(taken < 1 << 20 || cfg!(not(target_os = "linux")), "{taken} bytes on the disk");
}

#[test]
fn most_bytes_lie_in_their_blocks_as_in_the_source() {
    let craft = model("llama", 4, true).f32s("blk.2.big.weight", &[1024, 1000]);
    let source = header(&craft);
    let plan = SlicePlan::new(&source, range(2, 3)).unwrap();
    let big = plan.parts().iter().find(|part| part.name == "blk.0.big.weight").unwrap();
    let Bytes::Source { tensor } = big.bytes else { panic!("a hole") };
    let from = source.data_offset() + source.tensors()[tensor].offset();
    assert!(matches!(Header::parse(plan.header()).unwrap().metadata().get(PADDING_KEY), Some(Value::String(_))));
    assert_eq!(from % 4096, big.offset % 4096);
    // Too little to be worth it.
    let small = SlicePlan::new(&source, range(1, 2)).unwrap();
    assert_eq!(Header::parse(small.header()).unwrap().metadata().get(PADDING_KEY), None);
}

#[test]
fn the_embedding_is_found_in_the_file() {
    let folder = TempDir::new().unwrap();
    let source = source(&folder, &model("gemma3", 3, false));
    let embedding = EmbeddingSource::of(&source).unwrap().unwrap();
    assert_eq!((embedding.n_embd, embedding.n_vocab, embedding.row_bytes), (8, 40, 32));
    assert_eq!(embedding.factor, 8f32.sqrt());
    let file = fs::read(&embedding.path).unwrap();
    let row = embedding.offset as usize + 3 * embedding.row_bytes as usize;
    assert_eq!(file[row..row + 4], 24f32.to_le_bytes());
}
