//! Prints the table of what is computed again after a turn, for the templates in a folder (`just reuse`).

#[path = "../tests/reuse/measure.rs"]
mod measure;

use std::path::PathBuf;

use measure::{Model, Reuse, Scene};
use mesh_chat::Strategy;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args().nth(1).ok_or("usage: reuse FOLDER-OF-TEMPLATES")?;
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "jinja"));
    paths.sort();
    println!("| template | calls | call | text, call | hidden thoughts, call | thoughts sent back, call | answer |");
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    for path in paths {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let Ok(model) = Model::new(&std::fs::read_to_string(&path)?) else {
            println!("| {name} | no template | | | | | |");
            continue;
        };
        let calls = match &model.capability.strategy {
            Strategy::Native(format) => format.name,
            Strategy::Emulated(_) => "emulated",
        };
        let cells = Scene::ALL.map(|scene| model.play(scene).map_or_else(|| "–".to_owned(), cell));
        println!("| {name} | {calls} | {} |", cells.join(" | "));
    }
    Ok(())
}

/// `reused/held of prompt`, and a letter where something remains.
fn cell(reuse: Reuse) -> String {
    let Reuse { prompt, held, reused, is_continued, .. } = reuse;
    let why = match (reused == held, is_continued) {
        (true, _) => "",
        (false, false) => " ᵃ",
        (false, true) => " ᵇ",
    };
    format!("{reused}/{held} of {prompt}{why}")
}
