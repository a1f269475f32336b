//! After a turn, all that is held is of use: for templates of several kinds, and answers in tokens of their own.
#![allow(clippy::unwrap_used)] // a test that cannot go on says where

#[path = "reuse/measure.rs"]
mod measure;

use measure::{Model, Reuse, Scene};

/// Calls between tags; thoughts of the turns behind the last question are shown.
const HERMES: &str = "{%- if tools %}{{ '<|im_start|>system\n<tools>' }}{% for t in tools %}{{ t|tojson }}{% endfor %}\
    {{ '</tools><|im_end|>\n' }}{% endif %}{%- set ns = namespace(last=0) %}\
    {%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}\
    {%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}\
    {%- if m.reasoning_content and loop.index0 > ns.last %}\
    {{ '<think>\n' + m.reasoning_content|trim + '\n</think>\n\n' }}{% endif %}{{ (m.content or '')|trim }}\
    {%- for c in m.tool_calls or [] %}\
    {{ '\n<tool_call>\n{\"name\": \"' + c.function.name + '\", \"arguments\": ' + c.function.arguments|tojson }}\
    {{ '}\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}\
    {%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/// A JSON array behind a token, as Mistral's older templates have it.
const MISTRAL: &str = "{{ bos_token }}{%- for m in messages %}\
    {%- if m.role == 'system' or m.role == 'user' %}\
    {%- if tools and loop.index == messages|length %}[AVAILABLE_TOOLS] {{ tools|tojson }}[/AVAILABLE_TOOLS]{% endif %}\
    [INST] {{ m.content }}[/INST]\
    {%- elif m.role == 'tool' %}[TOOL_RESULTS] {\"content\": {{ m.content }}}[/TOOL_RESULTS]\
    {%- elif m.tool_calls %}[TOOL_CALLS] [{% for c in m.tool_calls %}{\"name\": \"{{ c.function.name }}\", \
    \"arguments\": {{ c.function.arguments|tojson }}}{% endfor %}]{{ eos_token }}\
    {%- else %} {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}";

/// Knows no tools.
const CHATML: &str = "{% for message in messages %}<|im_start|>{{ message.role + '\n' }}{{ message.content }}\
    {{ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

fn play(source: &str, scene: Scene) -> Reuse {
    let model = Model::new(source).unwrap();
    model.play(scene).unwrap_or_else(|| panic!("no {scene:?} in {}", model.capability.strategy))
}

#[test]
fn all_that_is_held_is_reused() {
    for (name, source, scenes) in
        [("hermes", HERMES, &Scene::ALL[..]), ("chatml", CHATML, &[Scene::Call, Scene::TextAndCall, Scene::Answer])]
    {
        for scene in scenes {
            let reuse = play(source, *scene);
            assert_eq!(reuse.reused, reuse.held, "{name}, {scene:?}: {reuse:?}");
            assert!(reuse.without_ledger < reuse.held, "{name}, {scene:?}: the ledger was not needed");
            assert!(reuse.prompt > reuse.held);
        }
    }
}

/// This template moves the tools behind the last question: then no ledger helps, and the table says so.
#[test]
fn a_prompt_that_changes_at_its_beginning_is_seen() {
    let reuse = play(MISTRAL, Scene::Answer);
    assert!(!reuse.is_continued && reuse.reused < reuse.held, "{reuse:?}");
}
