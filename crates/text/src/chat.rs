//! Chat templates: messages to the prompt text that a model was trained on.
//!
//! Models ship a Jinja template, written for the interpreter of Hugging Face `transformers`; [`ChatTemplate`] renders it
//! the way that one does. A template is a program from a stranger's file: it sees nothing but the values given here, and
//! its steps, memory, recursion and output are limited.

mod builtin;
mod json;
#[cfg(test)]
mod tests;
mod time;

use std::error::Error as _;
use std::io;
use std::sync::LazyLock;
use std::time::SystemTime;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, ValueKind};
use minijinja::{AutoEscape, Environment, ErrorKind, Value, context};
use regex::Regex;
use serde::Serialize;
use tailrace_gguf::escape;

use crate::{Error, Tokenizer};

/// Bytes of a template. The longest published ones have 30,000.
const TEMPLATE_BYTES_MAX: usize = 1 << 20;
/// Steps of one rendering, where creating 64 bytes counts as a step: at most 256 MiB and about a second.
const FUEL: u64 = 4 << 20;
/// Nested calls, blocks and macros.
const RECURSION_MAX: usize = 200;
/// Bytes of a prompt.
const OUTPUT_BYTES_MAX: usize = 64 << 20;

/// One message of a conversation.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Message {
    /// Who speaks: `system`, `user`, `assistant`, `tool`, or what else the template knows.
    pub role: String,
    /// What is said: usually a string; some templates take lists of parts, or null beside tool calls.
    pub content: serde_json::Value,
    /// Further fields that the template may read, such as `tool_calls`.
    #[serde(flatten)]
    pub more: serde_json::Map<String, serde_json::Value>,
}

impl Message {
    /// A message of plain text.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into().into(), more: serde_json::Map::new() }
    }
}

/// What a template is rendered with besides the messages.
#[derive(Clone, Debug)]
pub struct ChatOptions {
    /// End with the opening of the assistant's turn.
    pub add_generation_prompt: bool,
    /// Descriptions of the tools that the model may call, as JSON schema; empty: none.
    pub tools: Vec<serde_json::Value>,
    /// Further variables, such as `enable_thinking`.
    pub more: serde_json::Map<String, serde_json::Value>,
    /// What `strftime_now` prints, in UTC.
    pub now: SystemTime,
}

impl Default for ChatOptions {
    fn default() -> Self {
        Self { add_generation_prompt: true, tools: Vec::new(), more: serde_json::Map::new(), now: SystemTime::now() }
    }
}

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    bos_token: String,
    eos_token: String,
}

/// Name of the only template in the environment.
const NAME: &str = "chat";

impl ChatTemplate {
    /// Compiles `source`. `bos_token` and `eos_token` are what the variables of that name hold.
    ///
    /// # Errors
    ///
    /// [`Error::Template`] with the line and the reason.
    pub fn new(source: &str, bos_token: &str, eos_token: &str) -> Result<Self, Error> {
        if source.len() > TEMPLATE_BYTES_MAX {
            let reason = format!("{} bytes, at most {TEMPLATE_BYTES_MAX} are supported", source.len());
            return Err(Error::Template { line: None, reason });
        }
        let mut environment = environment()?;
        environment.add_template_owned(NAME, without_generation_tags(source)).map_err(describe)?;
        Ok(Self { environment, bos_token: bos_token.to_owned(), eos_token: eos_token.to_owned() })
    }

    /// The template of a model: its own (`source`, the file's `tokenizer.chat_template`), or else a built-in one that its
    /// special tokens call for (ChatML, Llama 3 or Gemma). `None` if there is neither, as with base models.
    ///
    /// # Errors
    ///
    /// As [`Self::new`].
    pub fn for_tokenizer(source: Option<&str>, tokenizer: &Tokenizer) -> Result<Option<Self>, Error> {
        let Some(source) = source.or_else(|| builtin::source(tokenizer)) else {
            return Ok(None);
        };
        let text = |token| tokenizer.token_text(token).into_owned();
        let [bos, eos] = [tokenizer.bos(), tokenizer.eos()].map(|t| t.map(text).unwrap_or_default());
        Self::new(source, &bos, &eos).map(Some)
    }

    /// The prompt text for `messages`. It spells out special tokens, so encode it with [`Tokenizer::encode_prompt`].
    ///
    /// # Errors
    ///
    /// [`Error::Template`] if the template fails, rejects the messages, or passes a limit.
    pub fn render(&self, messages: &[Message], options: &ChatOptions) -> Result<String, Error> {
        let tools = Some(&options.tools).filter(|tools| !tools.is_empty());
        let now = options.now;
        let strftime = move |format: &str| time::format(now, format);
        let context = context! {
            messages => Value::from(Serde(messages)),
            tools => Value::from(Serde(tools)),
            add_generation_prompt => options.add_generation_prompt,
            bos_token => &self.bos_token,
            eos_token => &self.eos_token,
            strftime_now => Value::from_function(strftime),
            ..Value::from(Serde(&options.more))
        };
        let template = self.environment.get_template(NAME).map_err(describe)?;
        let mut output = Limited(Vec::new());
        template.render_captured_to(context, &mut output).map_err(describe)?;
        String::from_utf8(output.0).map_err(|_| Error::Template { line: None, reason: "output is not UTF-8".into() })
    }
}

/// The interpreter, set up as `transformers` sets up Jinja2.
fn environment() -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(describe)?;
    environment.set_syntax(syntax);
    environment.set_debug(true); // errors name the variable that is undefined
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_fuel(Some(FUEL));
    environment.set_recursion_limit(RECURSION_MAX);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    // In Python strings and dictionaries are sequences too, and nothing is not iterable.
    let is_sequence = |value: &Value| matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::String);
    environment.add_test("sequence", is_sequence);
    environment.add_test("iterable", move |value: &Value| is_sequence(value) || value.kind() == ValueKind::Iterable);
    environment.add_filter("tojson", |value: &Value, options: Kwargs| json::dump(value, &options));
    environment.add_function("raise_exception", |message: String| -> Result<Value, minijinja::Error> {
        Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
    });
    Ok(environment)
}

/// `source` with the tags that mark the assistant's text for training, `{% generation %}`, made tags without an effect.
/// A condition keeps their control of white space.
fn without_generation_tags(source: &str) -> String {
    static TAG: LazyLock<Option<Regex>> =
        LazyLock::new(|| Regex::new(r"(?<open>\{%[-+]?\s*)(?<end>end)?generation(?<close>\s*[-+]?%\})").ok());
    let Some(tag) = &*TAG else { return source.to_owned() };
    let replace = |found: &regex::Captures<'_>| {
        let condition = if found.name("end").is_some() { "endif" } else { "if true" };
        format!("{}{condition}{}", &found["open"], &found["close"])
    };
    tag.replace_all(source, replace).into_owned()
}

/// The innermost cause in one line, with nothing in it that a terminal would obey.
fn describe(error: minijinja::Error) -> Error {
    let mut cause = &error;
    while let Some(inner) = cause.source().and_then(|e| e.downcast_ref()) {
        cause = inner;
    }
    let mut reason = match cause.detail() {
        Some(detail) if cause.kind() == ErrorKind::InvalidOperation => detail.to_owned(),
        Some(detail) => format!("{}: {detail}", cause.kind()),
        None => cause.kind().to_string(),
    };
    if let Some(outside) = cause.source() {
        reason = format!("{reason}: {outside}");
    }
    Error::Template { line: cause.line().or(error.line()), reason: escape(reason.as_bytes()) }
}

/// A prompt that refuses to grow past [`OUTPUT_BYTES_MAX`].
struct Limited(Vec<u8>);

impl io::Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > OUTPUT_BYTES_MAX - self.0.len() {
            return Err(io::Error::other("the prompt is too long"));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
