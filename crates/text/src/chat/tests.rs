use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use serde_json::Value as Json;
use tailrace_gguf::Strings;

use super::*;
use crate::{TokenKind, Vocabulary};

fn render(source: &str, messages: &[Message]) -> Result<String, Error> {
    ChatTemplate::new(source, "<s>", "</s>")?.render(messages, &ChatOptions::default())
}

fn reason(source: &str) -> (Option<usize>, String) {
    match render(source, &[Message::new("user", "hi")]) {
        Err(Error::Template { line, reason }) => (line, reason),
        other => panic!("{other:?}"),
    }
}

fn message(json: &Json) -> Message {
    let mut more = json.as_object().unwrap().clone();
    let role = more.remove("role").unwrap().as_str().unwrap().to_owned();
    Message { role, content: more.remove("content").unwrap(), more }
}

#[test]
fn templates_render_as_in_jinja2() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden/templates");
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
    let cases: Vec<Json> = serde_json::from_str(&read("expected.json")).unwrap();
    assert!(cases.len() >= 20);
    for case in cases {
        let template = case["template"].as_str().unwrap();
        let mut more = case["given"].as_object().unwrap().clone();
        let messages: Vec<Message> = more.remove("messages").unwrap().as_array().unwrap().iter().map(message).collect();
        let options = ChatOptions {
            add_generation_prompt: more.remove("add_generation_prompt") != Some(Json::Bool(false)),
            tools: more.remove("tools").map_or(Vec::new(), |tools| tools.as_array().unwrap().clone()),
            more,
            now: UNIX_EPOCH + Duration::from_secs(1_709_210_096),
        };
        let rendered = ChatTemplate::new(&read(template), "<s>", "</s>").unwrap().render(&messages, &options);
        assert_eq!(rendered.as_deref().ok(), case["text"].as_str(), "{template}, {}: {rendered:?}", case["case"]);
    }
}

#[test]
fn faults_name_line_and_reason() {
    assert_eq!(reason("a\n{{ b }}\n{% if %}").0, Some(3));
    assert_eq!(reason("a\n\n{{ nothing.inside }}"), (Some(3), "undefined value: `nothing` is undefined".to_owned()));
    let (line, text) = reason("a\n{{ raise_exception('No \u{1b}[31m' + messages[0].role) }}");
    assert_eq!(line, Some(2));
    assert!(text.starts_with("No ") && text.ends_with("user") && !text.contains('\u{1b}'), "{text}");
    let shown = ChatTemplate::new("{% if", "", "").unwrap_err().to_string();
    assert!(shown.starts_with("chat template, line 1: ") && !shown.contains('\n'), "{shown}");
    assert!(reason(&"x".repeat(TEMPLATE_BYTES_MAX + 1)).1.contains("at most"));
}

#[test]
fn steps_memory_recursion_and_output_are_limited() {
    for (source, what) in [
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "fuel"),
        ("{{ 'x' * 2000000000 }}", "fuel"),
        (
            "{% set ns = namespace(s='xxxxxxxxxxxxxxxx') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
            "fuel",
        ),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{% include 'chat' %}", "recursion"),
        ("{% set s = 'x' * 60000000 %}{{ s }}{{ s }}", "too long"),
    ] {
        let (_, reason) = reason(source);
        assert!(reason.contains(what), "{source}: {reason}");
    }
    let nested = "{% if true %}".repeat(50_000);
    assert!(render(&nested, &[]).is_err());
    let nested = format!("{{{{ {}1 }}}}", "(".repeat(50_000));
    assert!(render(&nested, &[]).is_err());
}

#[test]
fn templates_reach_nothing_but_their_variables() {
    for source in ["{{ ''.__class__ }}", "{{ messages.__init__.__globals__ }}", "{{ cycler.__init__ }}", "{{ self }}"] {
        let rendered = render(source, &[]);
        assert!(rendered.as_deref().unwrap_or_default().is_empty(), "{source}: {rendered:?}");
    }
    assert!(render("{% include '/etc/passwd' %}", &[]).is_err());
}

#[test]
fn text_is_not_escaped() {
    let text = "<b> & \"q\" 'a' {{ 1 }} {% if %}";
    assert_eq!(render("{{ messages[0].content }}", &[Message::new("user", text)]).unwrap(), text);
    let json = render("{{ messages[0].content | tojson }}", &[Message::new("user", "<a&'\"\n\u{1}é")]).unwrap();
    assert_eq!(json, r#""<a&'\"\n\u0001é""#);
}

fn tokenizer(texts: &[&str], bos: Option<u32>) -> Tokenizer {
    let vocabulary = Vocabulary {
        model: "llama".to_owned(),
        tokens: texts.iter().collect::<Strings>(),
        kinds: vec![TokenKind::Control; texts.len()],
        special: crate::SpecialIds { bos, ..crate::SpecialIds::default() },
        ..Vocabulary::default()
    };
    Tokenizer::new(vocabulary).unwrap()
}

fn built_in(texts: &[&str]) -> Option<String> {
    let messages = [
        Message::new("system", "Be brief."),
        Message::new("user", " Hi "),
        Message::new("assistant", "Yes?"),
        Message::new("user", "Bye"),
    ];
    let tokenizer = tokenizer(texts, Some(0));
    let template = ChatTemplate::for_tokenizer(None, &tokenizer).unwrap()?;
    Some(template.render(&messages, &ChatOptions::default()).unwrap())
}

#[test]
fn built_in_formats_follow_the_special_tokens() {
    assert_eq!(built_in(&["<s>", "<|im_start|>"]), None);
    assert_eq!(
        built_in(&["<s>", "<|im_start|>", "<|im_end|>"]).unwrap(),
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n Hi <|im_end|>\n\
         <|im_start|>assistant\nYes?<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n"
    );
    assert_eq!(
        built_in(&["<bos>", "<start_of_turn>", "<end_of_turn>"]).unwrap(),
        "<bos><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\nYes?<end_of_turn>\n\
         <start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n"
    );
    assert_eq!(
        built_in(&["<b>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]).unwrap(),
        "<b><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>\
         <|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>\
         <|start_header_id|>assistant<|end_header_id|>\n\nYes?<|eot_id|>\
         <|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
    );
}

#[test]
fn the_prompt_starts_with_one_beginning_of_text() {
    let tokenizer = tokenizer(&["<s>", "<|im_start|>"], Some(0));
    let ids = |text: &str| tokenizer.encode_prompt(text).into_iter().map(|t| t.0).collect::<Vec<_>>();
    assert_eq!(ids("<|im_start|>"), [0, 1]);
    assert_eq!(ids("<s><|im_start|>"), [0, 1]);
    assert_eq!(ids(""), [0]);
}
