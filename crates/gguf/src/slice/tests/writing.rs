//! Slices as files: written whole, in part, and taken up again.

use std::fs;
use std::ops::ControlFlow;

use tempfile::TempDir;

use super::*;
use crate::Manifest;

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
