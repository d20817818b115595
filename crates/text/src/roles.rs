//! Which tokens end generation and which are structure, where the file does not say (well).
//!
//! Files name `eos` and sometimes `eot`, yet chat models end their turns with tokens of their own.
//! As everywhere in this field these are known by their text; the lists follow llama.cpp's.

use crate::strings::StringTable;
use crate::vocabulary::SpecialIds;
use crate::{TokenId, TokenKind};

/// Tokens that end generation, by text.
const END_OF_GENERATION: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<\u{ff5c}end\u{2581}of\u{2581}sentence\u{ff5c}>",
    "[e~[",
];

/// Tokens of fill-in-the-middle prompts that end generation, by role and text.
const FIM_PAD: &[&str] = &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"];
const FIM_REP: &[&str] = &["<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"];
const FIM_SEP: &[&str] = &["<|file_sep|>"];

/// Structure that some files mark as text.
const FIM_PARTS: &[&str] = &[
    "<|fim_prefix|>",
    "<fim-prefix>",
    "<fim_prefix>",
    "<PRE>",
    "\u{2581}<PRE>",
    "<|code_prefix|>",
    "<|prefix|>",
    "<|fim_suffix|>",
    "<fim-suffix>",
    "<fim_suffix>",
    "<SUF>",
    "\u{2581}<SUF>",
    "<|code_suffix|>",
    "<|suffix|>",
    "<|fim_middle|>",
    "<fim-middle>",
    "<fim_middle>",
    "<MID>",
    "\u{2581}<MID>",
    "<|code_middle|>",
    "<|middle|>",
];

/// The tokens that end generation, ascending. Tokens known by their text become control tokens in
/// `kinds`: a file that marks the end of a turn as text would let it be printed.
pub(crate) fn end_of_generation(table: &StringTable, kinds: &mut [TokenKind], special: &SpecialIds) -> Vec<TokenId> {
    let find = |text: &&str| table.find(text.as_bytes());
    let mut control = |id: u32| {
        if let Some(kind) = kinds.get_mut(id as usize) {
            *kind = TokenKind::Control;
        }
    };
    FIM_PARTS.iter().filter_map(find).for_each(&mut control);
    let mut ends: Vec<u32> = [special.eos, special.eot, special.eom].into_iter().flatten().collect();
    for (given, texts) in [(special.fim_pad, FIM_PAD), (special.fim_rep, FIM_REP), (special.fim_sep, FIM_SEP)] {
        let by_text = || texts.iter().find_map(find).inspect(|&id| control(id));
        ends.extend(given.or_else(by_text));
    }
    for id in END_OF_GENERATION.iter().filter_map(find) {
        control(id);
        ends.push(id);
    }
    let ends_with = |text: &str| find(&text).is_some_and(|id| ends.contains(&id));
    // In these formats `<|end|>` closes a message, not the turn.
    let messages = ends_with("<|return|>") && ends_with("<|call|>")
        || ends_with("<|flush|>") && (ends_with("<|call|>") || ends_with("<|calls|>"));
    let tool_responses = ends_with("<|tool_response>");
    let no_end = [("<|end|>", messages, TokenKind::UserDefined), ("</s>", tool_responses, TokenKind::Normal)];
    for (text, applies, kind) in no_end {
        if let Some(id) = find(&text).filter(|_| applies) {
            ends.retain(|&end| end != id);
            if let Some(k) = kinds.get_mut(id as usize) {
                *k = kind;
            }
        }
    }
    ends.sort_unstable();
    ends.dedup();
    ends.into_iter().map(TokenId).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(tokens: &[&str], special: SpecialIds) -> (Vec<u32>, Vec<TokenKind>) {
        let strings = tokens.iter().collect();
        let mut kinds = vec![TokenKind::Normal; tokens.len()];
        let table = StringTable::new(strings).0;
        let ends = end_of_generation(&table, &mut kinds, &special);
        (ends.into_iter().map(|t| t.0).collect(), kinds)
    }

    #[test]
    fn ids_and_texts_join() {
        let special = SpecialIds { eos: Some(1), ..SpecialIds::default() };
        let (ids, kinds) = ends(&["a", "b", "<|im_end|>", "<|file_sep|>", "<PRE>"], special);
        assert_eq!(ids, [1, 2, 3]);
        assert_eq!(kinds[1], TokenKind::Normal);
        assert_eq!(kinds[2..], [TokenKind::Control; 3]);
    }

    #[test]
    fn message_ends_are_no_turn_ends() {
        let (ids, kinds) = ends(&["<|end|>", "<|return|>", "<|call|>"], SpecialIds::default());
        assert_eq!(ids, [1, 2]);
        assert_eq!(kinds[0], TokenKind::UserDefined);
        assert_eq!(ends(&["<|end|>", "<|return|>"], SpecialIds::default()).0, [0, 1]);
    }
}
