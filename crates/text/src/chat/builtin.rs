//! Chat formats of model families, for files that come without a template.

use crate::Tokenizer;

/// Qwen, SmolLM, Yi and many fine-tunes.
const CHATML: &str = "\
{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{% endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/// Llama 3.
const LLAMA3: &str = "\
{{ bos_token }}{% for message in messages %}
{{ '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + message.content | trim + '<|eot_id|>' }}
{%- endfor %}
{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}";

/// Gemma 1 to 3: no system role, so a system message opens the user's first turn.
const GEMMA: &str = "\
{{ bos_token }}{% set ns = namespace(system='') %}
{% for message in messages %}
{% if message.role == 'system' %}
{% set ns.system = ns.system + message.content | trim + '\\n\\n' %}
{% else %}
{% set role = 'model' if message.role == 'assistant' else message.role %}
{{ '<start_of_turn>' + role + '\\n' + ns.system + message.content | trim + '<end_of_turn>\\n' -}}
{% set ns.system = '' %}
{% endif %}
{% endfor %}
{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}";

/// Formats with the tokens that mark them.
const FORMATS: &[(&[&str], &str)] = &[
    (&["<|im_start|>", "<|im_end|>"], CHATML),
    (&["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"], LLAMA3),
    (&["<start_of_turn>", "<end_of_turn>"], GEMMA),
];

/// The format whose marks are all tokens of the vocabulary.
pub(super) fn source(tokenizer: &Tokenizer) -> Option<&'static str> {
    let has_all = |marks: &[&str]| marks.iter().all(|mark| tokenizer.find(mark).is_some());
    FORMATS.iter().find(|(marks, _)| has_all(marks)).map(|&(_, source)| source)
}
