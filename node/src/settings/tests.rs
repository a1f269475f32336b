use super::*;

fn args() -> NodeArgs {
    NodeArgs { data_dir: Some("/d".into()), ..NodeArgs::default() }
}

#[test]
fn a_gateway_off_loopback_needs_a_key() {
    let open = NodeArgs { gateway: Some("0.0.0.0:80".into()), ..args() };
    assert!(Settings::load(open).unwrap_err().to_string().contains("--api-key"));
    let keyed = NodeArgs { gateway: Some("0.0.0.0:80".into()), api_key: Some("k".into()), ..args() };
    assert!(Settings::load(keyed).is_ok());
    let empty = NodeArgs { gateway: Some("[::]:80".into()), api_key: Some(String::new()), ..args() };
    assert!(Settings::load(empty).is_err());
}

#[test]
fn a_split_is_for_all_models_or_for_one() {
    let both = NodeArgs {
        models: vec!["A.gguf".into(), "B.gguf".into()],
        splits: vec!["never".into(), "b=0-3,4-9".into()],
        ..args()
    };
    let settings = Settings::load(both).unwrap();
    assert_eq!(settings.models[0].split, Split::Never);
    let Split::Ranges(ranges) = &settings.models[1].split else { panic!("ranges were given") };
    assert_eq!(ranges.iter().map(ToString::to_string).collect::<Vec<_>>(), ["0-3", "4-9"]);
    let unknown = NodeArgs { splits: vec!["c=never".into()], ..args() };
    assert!(Settings::load(unknown).unwrap_err().to_string().contains("`c`"));
    let bad = NodeArgs { splits: vec!["5-3".into()], ..args() };
    assert!(Settings::load(bad).unwrap_err().to_string().contains("5-3"));
}

#[test]
fn flags_win_over_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c.toml");
    std::fs::write(
        &path,
        "name = 'file'\nctx = 1024\nparallel = 2\ngpu_layers = 3\ncache = '20G'\nmax_requests = 5\n[[models]]\npath = 'm.gguf'\nname = 'x'\n",
    )
    .unwrap();
    let settings = Settings::load(NodeArgs { config: Some(path.clone()), ctx: Some(512), ..args() }).unwrap();
    assert_eq!((settings.name.as_str(), settings.stage.ctx, settings.stage.parallel), ("file", Some(512), 2));
    assert_eq!(settings.stage.compute.gpu_layers, Some(3));
    assert_eq!((settings.cache, settings.memory), (Some(ByteSize(20 << 30)), None));
    assert_eq!((settings.limits.requests, settings.limits.connections), (5, 2048));
    assert_eq!(settings.models[0].name.as_str(), "x");
    std::fs::write(&path, "colour = 1").unwrap();
    let error = Settings::load(NodeArgs { config: Some(path), ..args() }).unwrap_err();
    assert!(error.to_string().contains("colour"), "{error}");
}

#[test]
fn two_models_of_one_name_are_refused() {
    let twice = NodeArgs { models: vec!["a/M.gguf".into(), "b/m.gguf".into()], ..args() };
    assert!(Settings::load(twice).unwrap_err().to_string().contains("`m`"));
}
