use super::*;

fn said(role: &str, content: &str) -> Message {
    Message { role: role.to_owned(), content: Some(content.to_owned()), ..Message::default() }
}

/// Renders `source` over one user message and the variables in `extra` (a JSON object).
fn render(source: &str, extra: &str) -> Result<String, ChatError> {
    let template = ChatTemplate::parse(source, "<s>", "</s>")?;
    let messages = [said("user", "Hi")];
    let mut input = template.input(&messages, true);
    input.extra = serde_json::from_str(extra).expect("the test's own JSON");
    input.now = Some("2026-07-04T09:05:00[UTC]".parse().expect("the test's own time"));
    template.render_input(&input)
}

fn rendered(source: &str, extra: &str) -> String {
    render(source, extra).expect(source)
}

/// The chat template inside SmolLM2-135M-Instruct.
const SMOLLM2: &str = "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}\
    {{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}\
    {% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}\
    {% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

#[test]
fn smollm2_gets_its_own_prompt() {
    let template = ChatTemplate::of_model(Some(SMOLLM2), "<|im_start|>", "<|im_end|>").expect("a template");
    assert_eq!(template.origin(), TemplateOrigin::Given);
    let messages = [said("user", "Hi"), said("assistant", "Hello!"), said("user", "Bye")];
    let prompt = template.render(&messages, true).expect("a prompt");
    let expected = "<|im_start|>system\n\
        You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n\
        <|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello!<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n\
        <|im_start|>assistant\n";
    assert_eq!(prompt, expected);
    let prompt = template.render(&[said("system", "Be brief.")], false).expect("a prompt");
    assert_eq!(prompt, "<|im_start|>system\nBe brief.<|im_end|>\n");
}

#[test]
fn a_model_without_a_template_gets_chatml() {
    let template = ChatTemplate::of_model(None, "", "").expect("a template");
    assert_eq!(template.origin(), TemplateOrigin::BuiltIn);
    let messages = [said("developer", "Be brief."), Message { role: "user".to_owned(), ..Message::default() }];
    let prompt = template.render(&messages, true).expect("a prompt");
    assert_eq!(
        prompt,
        "<|im_start|>developer\nBe brief.<|im_end|>\n<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n"
    );
}

#[test]
fn a_loop_over_the_rest_of_a_list_is_pythons() {
    let x = r#"{"x": [1, 2, 3], "t": "abc", "n": -2}"#;
    let source = "{% for a in x %}{% for b in x[loop.index0:] %}{{ b }}{{ '.' if loop.last }}{{ loop.length }} \
        {% endfor %}{% endfor %}";
    assert_eq!(rendered(source, x), "13 23 3.3 22 3.2 3.1 ");
    for (list, expected) in [("x[3:]", ""), ("x[9:]", ""), ("x[n:]", "2,3,"), ("x[n + 3:]", "2,3,"), ("t[1:]", "b,c,")]
    {
        let source = format!("{{% for a in {list} %}}{{{{ a }}}},{{% endfor %}}");
        assert_eq!(rendered(&source, x), expected, "{list}");
    }
    assert!(render("{% for a in y[1:] %}{% endfor %}", x).is_err());
}

#[test]
fn whitespace_is_cut_as_hugging_face_has_it() {
    let source = "{{ bos_token }}\n{% for message in messages %}\n  {% if true %}\n[{{ message.content }}]\n  \
        {%- endif %}\n{% endfor %}\nend\n";
    assert_eq!(rendered(source, "{}"), "<s>\n[Hi]end");
    assert_eq!(rendered("a\n\n", "{}"), "a\n");
    assert_eq!(rendered("a  {%- generation -%}\n b {% endgeneration %}\nc", "{}"), "ab c");
}

#[test]
fn json_is_written_as_python_writes_it() {
    let extra = r#"{"x":{"b":[1,2.0,true,null],"a":"é<'\"\n\u0001"}}"#;
    assert_eq!(rendered("{{ x|tojson }}", extra), r#"{"b": [1, 2.0, true, null], "a": "é<'\"\n\u0001"}"#);
    assert_eq!(
        rendered("{{ x|tojson(ensure_ascii=true, separators=(',', ':'), sort_keys=true) }}", extra),
        r#"{"a":"\u00e9<'\"\n\u0001","b":[1,2.0,true,null]}"#
    );
    assert_eq!(rendered("{{ [[], {}, [1]]|tojson(indent=2) }}", extra), "[\n  [],\n  {},\n  [\n    1\n  ]\n]");
    assert_eq!(rendered("{{ '\u{1f980}'|tojson(true) }}", extra), r#""\ud83e\udd80""#);
    assert!(matches!(render("{{ nothing|tojson }}", "{}"), Err(ChatError::Render(_))));
}

#[test]
fn python_is_at_hand() {
    assert_eq!(rendered("{{ ' Ab '.strip().upper() ~ {'k': 1}.get('x') ~ (1 == 1) }}", "{}"), "ABNoneTrue");
    assert_eq!(
        rendered("{% for k, v in x.items() %}{{ k }}={{ v }};{% endfor %}", r#"{"x":{"b":1,"a":2}}"#),
        "b=1;a=2;"
    );
    assert_eq!(rendered("{{ 'a</think>b</think>c'.split('</think>', 1)[-1] }}", "{}"), "b</think>c");
    assert_eq!(rendered("{{ 'a-b-c'.split('-', maxsplit=1)|join('+') }}", "{}"), "a+b-c");
    assert_eq!(rendered("{{ 'prefix'.removeprefix('pre').removesuffix('x') }}", "{}"), "fi");
    assert_eq!(rendered("{{ '<\"\\'&'|e }}", "{}"), "&lt;&#34;&#39;&amp;");
    assert_eq!(rendered("{{ strftime_now('%d %b %Y') }}", "{}"), "04 Jul 2026");
    assert_eq!(rendered("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "{}"), "01");
    assert_eq!(rendered("{{ tools is none }}{{ messages[0].name is defined }}{{ nothing }}", "{}"), "TrueFalse");
}

#[test]
fn values_are_what_they_are_in_python() {
    let kinds = "{{ x is iterable }} {{ x is sequence }} {{ x is mapping }} {{ x is string }}";
    assert_eq!(rendered(kinds, r#"{"x":null}"#), "False False False False");
    assert_eq!(rendered(kinds, r#"{"x":"a"}"#), "True True False True");
    assert_eq!(rendered(kinds, r#"{"x":{}}"#), "True True True False");
    assert_eq!(rendered(kinds, r#"{"x":[]}"#), "True True False False");
    assert_eq!(rendered(kinds, r#"{"x":1}"#), "False False False False");
    assert_eq!(rendered(kinds, "{}"), "True True False False");
}

#[test]
fn a_null_content_is_none() {
    let template = ChatTemplate::parse("{{ messages[0].content is none }}", "", "").expect("a template");
    let message = Message { role: "assistant".to_owned(), ..Message::default() };
    assert_eq!(template.render(&[message], false), Ok("True".to_owned()));
}

#[test]
fn a_refusal_is_the_templates_own_sentence() {
    let error = render("{{ raise_exception('Only user and assistant roles are supported!') }}", "{}").unwrap_err();
    assert_eq!(error, ChatError::Refused("Only user and assistant roles are supported!".to_owned()));
    let in_a_macro = "{% macro m() %}{{ raise_exception('no') }}{% endmacro %}{{ m() }}";
    assert_eq!(render(in_a_macro, "{}"), Err(ChatError::Refused("no".to_owned())));
}

#[test]
fn faults_name_their_place() {
    let error = render("a\n{% if %}", "{}").unwrap_err();
    assert!(matches!(&error, ChatError::Syntax(what) if what.contains("line 2")), "{error}");
    let error = render("a\n{{ nothing.at.all }}", "{}").unwrap_err();
    assert!(matches!(&error, ChatError::Render(what) if what.contains("line 2")), "{error}");
}

#[test]
fn nesting_does_not_overflow_the_stack() {
    let nest = "{% set n = namespace(x=[], y=[]) %}\
        {% for i in range(9) %}{% for j in range(99999) %}{% set n.x = [n.x] %}{% endfor %}{% endfor %}";
    assert_eq!(render(nest, "{}"), Err(ChatError::TooCostly));
    let nest = nest.replace("range(9)", "range(1)").replace("99999", "50000");
    assert_eq!(rendered(&nest, "{}"), "");
    assert_eq!(rendered(&format!("{nest}{{{{ n.x }}}}"), "{}").len(), 100_002);
    let both = nest.replace("[n.x] %}", "[n.x] %}{% set n.y = [n.y] %}");
    assert_eq!(rendered(&format!("{both}{{{{ n.x == n.y }}}}"), "{}"), "True");
    let sum = format!("{{{{ 1{} }}}}", "+1".repeat(MAX_SOURCE / 2 - 10));
    assert!(!rendered(&sum, "{}").is_empty());
}

#[test]
fn a_template_that_copies_its_prompt_for_each_message_is_paid_for() {
    let source =
        "{% set n = namespace(p='') %}{% for m in messages %}{% set n.p = n.p ~ m.content %}{% endfor %}{{ n.p }}";
    let template = ChatTemplate::parse(source, "", "").expect("a template");
    let messages: Vec<Message> = (0..400).map(|_| said("user", &"word ".repeat(200))).collect();
    assert_eq!(template.render(&messages, true).expect("a prompt").len(), 400_000);
}

#[test]
fn a_template_cannot_run_for_ever_or_eat_the_memory() {
    let forever = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
    assert_eq!(render(forever, "{}"), Err(ChatError::TooCostly));
    let doubling = "{% set n = namespace(x='ab') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}";
    assert_eq!(render(doubling, "{}"), Err(ChatError::TooCostly));
    let flood = "{% for a in range(9999) %}{{ 'abcdefgh' * 32 }}{% endfor %}";
    assert_eq!(render(flood, "{}"), Err(ChatError::TooCostly));
    let recursion = "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}";
    assert!(render(recursion, "{}").is_err());
    let deep =
        "{% set n = namespace(x=[]) %}{% for i in range(200) %}{% set n.x = [n.x] %}{% endfor %}{{ n.x|tojson }}";
    assert!(matches!(render(deep, "{}"), Err(ChatError::Render(_))));
    let source = "x".repeat(MAX_SOURCE + 1);
    assert!(matches!(ChatTemplate::parse(&source, "", ""), Err(ChatError::Syntax(_))));
}
