use std::fs;

use tempfile::TempDir;

use super::*;
use crate::craft::{Craft, model};

fn write(folder: &TempDir, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.path().join(name);
    fs::write(&path, bytes).unwrap();
    path
}

/// A model in three files, of which the first holds only metadata; and in one.
fn sharded(folder: &TempDir) -> (PathBuf, PathBuf, Craft) {
    let craft = model("llama", 4, true);
    let n = craft.tensors();
    for (number, range) in [(0, 0..0), (1, 0..5), (2, 5..n)] {
        let bytes = craft.shard(range, number, 3).file();
        write(folder, &format!("m-{:05}-of-00003.gguf", number + 1), &bytes);
    }
    let whole = write(folder, "whole.gguf", &craft.file());
    (folder.path().join("m-00001-of-00003.gguf"), whole, craft)
}

#[test]
fn shards_are_one_model() {
    let folder = TempDir::new().unwrap();
    let (first, whole, _) = sharded(&folder);
    let (sharded, whole) = (Source::open(&first).unwrap(), Source::open(&whole).unwrap());
    assert_eq!(sharded.header(), whole.header());
    assert_eq!((sharded.files().len(), whole.files().len()), (3, 1));
    for (index, tensor) in whole.header().tensors().iter().enumerate() {
        let mut bytes = [vec![0; tensor.n_bytes() as usize], vec![1; tensor.n_bytes() as usize]];
        sharded.read(index, 0, &mut bytes[0]).unwrap();
        whole.read(index, 0, &mut bytes[1]).unwrap();
        assert_eq!(bytes[0], bytes[1], "{}", tensor.name());
    }
    let (index, _) = whole.header().tensor("output.weight").unwrap();
    assert!(sharded.place(index).unwrap().0.ends_with("m-00003-of-00003.gguf"));
}

#[test]
fn shards_that_do_not_fit_are_refused() {
    let text = |path: &Path| Source::open(path).unwrap_err().to_string();
    let folder = TempDir::new().unwrap();
    let (first, _, craft) = sharded(&folder);
    let second = folder.path().join("m-00002-of-00003.gguf");
    assert!(text(&second).contains("is file 2 of 3 of a sharded model: open the first one"));

    let renamed = folder.path().join("other.gguf");
    fs::copy(&first, &renamed).unwrap();
    assert!(text(&renamed).contains("its name does not"));

    let good = fs::read(&second).unwrap();
    fs::copy(folder.path().join("m-00003-of-00003.gguf"), &second).unwrap();
    assert!(text(&first).contains("does not say that it is file 2 of 3"));
    fs::write(&second, craft.shard(0..4, 1, 3).file()).unwrap();
    assert!(text(&first).contains("are promised"));
    fs::write(&second, craft.shard(0..6, 1, 3).file()).unwrap();
    assert!(text(&first).contains("promised") || text(&first).contains("appears twice"));
    fs::write(&second, &good[..good.len() - 200]).unwrap();
    assert!(text(&first).contains("truncated") && text(&first).contains("m-00002-of-00003.gguf"));
    fs::remove_file(&second).unwrap();
    assert!(matches!(Source::open(&first), Err(Error::Io { path, .. }) if path == second));
}

#[test]
fn files_that_are_no_models_are_named() {
    let folder = TempDir::new().unwrap();
    let text = |path: &Path| Source::open(path).unwrap_err().to_string();
    assert!(text(&write(&folder, "a.gguf", b"hello")).contains("a.gguf: this is not a GGUF file"));
    assert!(text(&write(&folder, "b.gguf", b"")).contains("not a GGUF"));
    assert!(text(folder.path()).contains("it is no regular file"));
    let missing = Source::open(&folder.path().join("none.gguf")).unwrap_err();
    assert_eq!(missing.class(), mesh_types::ErrorClass::NotFound);
}

#[test]
fn reads_stay_within_a_tensor() {
    let folder = TempDir::new().unwrap();
    let source = Source::open(&write(&folder, "m.gguf", &model("llama", 1, false).file())).unwrap();
    let n_bytes = source.header().tensors()[0].n_bytes();
    let mut bytes = [0; 8];
    source.read(0, n_bytes - 8, &mut bytes).unwrap();
    assert_eq!(bytes[4..], 319f32.to_le_bytes());
    for (tensor, offset) in [(0, n_bytes - 7), (0, u64::MAX), (99, 0)] {
        assert!(source.read(tensor, offset, &mut bytes).is_err());
    }
}

#[test]
fn a_change_in_place_is_noticed() {
    let folder = TempDir::new().unwrap();
    let path = write(&folder, "m.gguf", &model("llama", 1, false).file());
    let source = Source::open(&path).unwrap();
    source.check_unchanged().unwrap();
    fs::write(&path, b"shorter").unwrap();
    assert!(matches!(source.check_unchanged(), Err(Error::Changed { .. })));
}
