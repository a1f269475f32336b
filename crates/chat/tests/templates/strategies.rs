//! What the probe makes of each template.

use mesh_chat::{Capability, ChatTemplate};

use crate::archive;

#[test]
fn each_template_is_native_or_emulated_for_a_reason() {
    let expected = include_str!("strategies.txt");
    let found: String = archive::templates()
        .into_iter()
        .map(|(name, source)| {
            let template = ChatTemplate::parse(&source, "<s>", "</s>").expect("a template");
            format!("{name}: {}\n", Capability::probe(&template).strategy)
        })
        .collect();
    assert_eq!(found, expected);
}
