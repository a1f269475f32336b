use std::fs;

use mesh_types::{Digest, LayerRange};

use super::*;

fn id(number: u8) -> SliceId {
    SliceId::new(Digest([number; 32]), LayerRange::new(0, 1).unwrap())
}

/// A file of `kib` KiB that was used `age` seconds ago.
fn put(folder: &Path, name: &str, kib: usize, age: u64) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, vec![7; kib << 10]).unwrap();
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(age)).unwrap();
    path
}

fn open(folder: &Path, kib: u64) -> SliceCache {
    SliceCache::open(folder, Some(ByteSize(kib << 10))).unwrap()
}

#[test]
fn the_least_recently_used_goes_and_what_is_in_use_stays() {
    let folder = tempfile::tempdir().unwrap();
    let slice = |number, age| put(folder.path(), &format!("{}.gguf", id(number)), 100, age);
    let [oldest, old, new] = [slice(1, 300), slice(2, 200), slice(3, 100)];
    let cache = open(folder.path(), 400);
    let lease = cache.lease(id(1)).unwrap();
    assert_eq!(lease.path(), oldest);
    let room = cache.room(id(4), 200 << 10).unwrap();
    assert_eq!([oldest.exists(), old.exists(), new.exists()], [true, false, true]);
    // What is promised counts, whether it is on the disk or not.
    let error = cache.room(id(5), 200 << 10).unwrap_err().to_string();
    let expected =
        "the slice takes 200.0 KiB and the cache may hold 400.0 KiB (--cache), of which 300.0 KiB are in use";
    assert_eq!(error, expected);
    assert!(new.exists(), "removing it would not have helped");
    put(folder.path(), &format!("{}.partial", id(4)), 20, 0);
    assert!(cache.room(id(5), 101 << 10).is_err());
    drop(room);
    let other = lease.clone();
    drop(lease);
    assert!(cache.room(id(5), 301 << 10).is_err());
    assert!(oldest.exists(), "a clone of the lease holds it");
    drop(other);
    // Used a moment ago, and yet it goes before the limit is passed.
    cache.room(id(5), 301 << 10).unwrap();
    assert!(!oldest.exists());
}

#[test]
fn a_lease_makes_a_slice_young() {
    let folder = tempfile::tempdir().unwrap();
    let [first, second] =
        [1, 2].map(|number| put(folder.path(), &format!("{}.gguf", id(number)), 100, 300 - u64::from(number)));
    let cache = open(folder.path(), 300);
    drop(cache.lease(id(1)));
    assert_eq!(cache.lease(id(9)).map(|lease| lease.path().to_owned()), None);
    let _room = cache.room(id(3), 150 << 10).unwrap();
    assert_eq!([first.exists(), second.exists()], [true, false]);
}

#[test]
fn leftovers_are_swept_and_unfinished_ones_kept_for_a_week() {
    let folder = tempfile::tempdir().unwrap();
    let day = 24 * 3600;
    let [fresh, stale] = [(1, 6 * day), (2, 8 * day)]
        .map(|(number, age)| put(folder.path(), &format!("{}.partial", id(number)), 4, age));
    // Published, and its node ended before it was on the disk.
    let unsynced = put(folder.path(), &format!("{}.partial", id(3)), 4, 10);
    let published = folder.path().join(format!("{}.gguf", id(3)));
    fs::hard_link(&unsynced, &published).unwrap();
    let nameless = put(folder.path(), ".whatever.gguf.1234-0.partial", 4, 1);
    let foreign = put(folder.path(), "notes.txt", 4, 9 * day);
    let cache = open(folder.path(), 8);
    assert_eq!([fresh.exists(), stale.exists(), unsynced.exists()], [true, false, true]);
    assert_eq!([published.exists(), nameless.exists(), foreign.exists()], [false, false, true]);
    assert_eq!(cache.used().unwrap(), ByteSize(8 << 10));
    drop(cache);
    // A lower limit than before.
    open(folder.path(), 4);
    assert_eq!([fresh.exists(), unsynced.exists()], [false, true]);
}

#[test]
fn the_default_is_a_fifth_of_the_disk() {
    let folder = tempfile::tempdir().unwrap();
    let cache = SliceCache::open(folder.path().join("slices"), None).unwrap();
    assert_eq!(cache.limit().0, fs4::total_space(folder.path()).unwrap() / 5);
    let slice = put(&folder.path().join("slices"), &format!("{}.gguf", id(1)), 100, 10);
    let error = cache.disk_room(u64::MAX / 2).unwrap_err().to_string();
    assert!(error.contains("the disk of the cache has"), "{error}");
    cache.disk_room(1).unwrap();
    assert!(slice.exists(), "nothing goes in vain");
}
