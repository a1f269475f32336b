use super::*;

fn data_dir(parent: &tempfile::TempDir, name: &str) -> DataDir {
    DataDir::open(parent.path().join(name)).unwrap()
}

fn token_of(membership: &Membership, bootstrap: &str) -> JoinToken {
    JoinToken {
        mesh: membership.mesh,
        epoch: membership.epoch,
        expires: None,
        secret: membership.secret.clone(),
        bootstrap: vec![bootstrap.parse().unwrap()],
    }
}

#[test]
fn a_mesh_is_resumed() {
    let parent = tempfile::tempdir().unwrap();
    let dir = data_dir(&parent, "a");
    let mut first = Membership::create_or_resume(&dir).unwrap();
    let peer = PeerId::from("12D3KooWx");
    assert!(first.remember(&peer, &["/ip4/192.0.2.1/tcp/1".parse().unwrap()]));
    assert!(!first.remember(&peer, &["/ip4/192.0.2.1/tcp/1".parse().unwrap()]));
    first.save().unwrap();
    let again = Membership::create_or_resume(&dir).unwrap();
    assert_eq!((again.mesh, again.epoch), (first.mesh, 1));
    assert!(again.secret == first.secret);
    assert_eq!(again.peers, first.peers);
    assert!(!format!("{again:?}").contains(&hex::encode(again.secret.0)));
}

#[test]
fn a_replaced_secret_and_blocked_peers_are_kept() {
    let parent = tempfile::tempdir().unwrap();
    let dir = data_dir(&parent, "a");
    let mut membership = Membership::create_or_resume(&dir).unwrap();
    let first = membership.secret.clone();
    (0..10).for_each(|_| membership.rotate().unwrap());
    assert!(!membership.renew(10, Secret([255; 32])), "not newer");
    assert!(membership.renew(11, Secret([255; 32])) && !membership.renew(11, first.clone()), "one of two wins");
    assert!(membership.block(&"bad".into()) && !membership.block(&"bad".into()));
    membership.save().unwrap();
    let mut kept = Membership::load(&dir).unwrap().unwrap();
    assert_eq!((kept.epoch(), kept.past().len(), kept.past()[0].0), (11, MAX_PAST, 4));
    assert!(kept.secret == membership.secret && kept.secret != first);
    assert_eq!(kept.blocked(), [PeerId::from("bad")]);
    assert!(kept.unblock(&"bad".into()) && kept.blocked().is_empty());
}

#[test]
fn a_joined_mesh_is_kept_once_a_member_accepts() {
    let parent = tempfile::tempdir().unwrap();
    let founder = Membership::create_or_resume(&data_dir(&parent, "a")).unwrap();
    let id = libp2p::PeerId::random();
    let token = token_of(&founder, &format!("/ip4/192.0.2.1/tcp/9/p2p/{id}"));
    let dir = data_dir(&parent, "b");
    let mut joined = Membership::join(&dir, &token).unwrap();
    joined.save().unwrap();
    assert!(Membership::load(&dir).unwrap().is_none(), "unproven");
    assert!(joined.proven() && !joined.proven());
    joined.save().unwrap();
    let kept = Membership::load(&dir).unwrap().unwrap();
    assert_eq!(kept.mesh, founder.mesh);
    assert_eq!(kept.known_peers().next().unwrap().1[0].to_string(), "/ip4/192.0.2.1/tcp/9");

    let expired = JoinToken { expires: Some(1), ..token };
    assert!(Membership::join(&dir, &expired).unwrap_err().to_string().contains("expired"));

    let other = Membership::create_or_resume(&data_dir(&parent, "c")).unwrap();
    let error = Membership::join(&dir, &token_of(&other, "/ip4/192.0.2.2/tcp/9")).unwrap_err().to_string();
    assert!(error.contains(&kept.mesh.to_string()) && error.contains(&other.mesh.to_string()), "{error}");
}

#[test]
fn a_damaged_file_is_named() {
    let parent = tempfile::tempdir().unwrap();
    let dir = data_dir(&parent, "a");
    std::fs::write(dir.file(FILE), b"{").unwrap();
    let error = Membership::create_or_resume(&dir).unwrap_err().to_string();
    assert!(error.contains("membership.json is damaged"), "{error}");
}
