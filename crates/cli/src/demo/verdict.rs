//! Whether the demonstration shows what it is for.

use std::fmt::{self, Write as _};

use anyhow::{Result, bail, ensure};
use tailrace_measure::eval::{Trial, UNKNOWN};
use tailrace_types::Bytes;

use super::pass::Pass;

/// So much of the cache must be in the tail.
const TAIL_SHARE_MIN: f64 = 0.9;

/// What stands behind an answer.
pub(super) fn mark(trial: &Trial, text: &str) -> &'static str {
    if trial.is_answered_by(text) {
        "right"
    } else if text.contains(UNKNOWN) {
        "lost"
    } else {
        "wrong"
    }
}

/// Both passes side by side.
pub(super) fn table(rolling: &Pass, resident: &Pass) -> String {
    let mut text = format!(
        "{:<10}{:>14}{:>14}{:>8}{:>20}{:>14}{:>14}\n",
        "", "device memory", "tail", "", "read from the tail", "reading", "answering"
    );
    for (name, pass) in [("capped", rolling), ("resident", resident)] {
        let read = pass.document_tokens() as f64 / pass.reading_seconds.max(1e-9);
        let _ = writeln!(
            text,
            "{name:<10}{:>14}{:>14}{:>7.1}%{:>20}{:>14}{:>14}",
            Bytes(pass.device_bytes).to_string(),
            Bytes(pass.tail_bytes).to_string(),
            100.0 * pass.tail_share(),
            Bytes(pass.read_bytes).to_string(),
            format!("{read:.0} tok/s"),
            format!("{:.0} tok/s", pass.answered_tps()),
        );
    }
    let rate = rolling.tail_bytes as f64 * rolling.answered_tps() / 1e9;
    let _ = writeln!(text, "Under the cap every token of an answer reads the whole tail: {rate:.1} GB/s.");
    text
}

/// How far the logits of two passes are from each other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Difference {
    rows: usize,
    vocab: usize,
    /// Logits whose bits differ, and those that only one pass has.
    differ: usize,
    largest: f32,
}

impl Difference {
    pub(super) fn new(rolling: &Pass, resident: &Pass) -> Self {
        let (mut a, mut b) = (rolling.logits(), resident.logits());
        let (mut count, mut differ, mut largest) = (0, 0, 0.0_f32);
        loop {
            match (a.next(), b.next()) {
                (Some(a), Some(b)) if a.to_bits() == b.to_bits() => {}
                (Some(a), Some(b)) => {
                    // What is no number is as far as can be.
                    let distance = Some((a - b).abs()).filter(|distance| !distance.is_nan());
                    (differ, largest) = (differ + 1, largest.max(distance.unwrap_or(f32::INFINITY)));
                }
                (None, None) => break,
                _ => (differ, largest) = (differ + 1, f32::INFINITY),
            }
            count += 1;
        }
        Difference { rows: count / rolling.vocab.max(1), vocab: rolling.vocab, differ, largest }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Difference { rows, vocab, differ, largest } = self;
        writeln!(f, "Logits of {rows} tokens, {vocab} each: {differ} differ, the largest difference is {largest}.")
    }
}

/// Decides whether the passes show what they are for.
///
/// # Errors
///
/// An answer is wrong, the passes differ, or the tail was not needed.
pub(super) fn check(trials: &[Trial], rolling: &Pass, resident: &Pass, difference: &Difference) -> Result<()> {
    let share = rolling.tail_share();
    ensure!(
        share >= TAIL_SHARE_MIN,
        "only {:.1} % of the cache was in the tail, {:.0} % were to be; take more --tokens",
        100.0 * share,
        100.0 * TAIL_SHARE_MIN
    );
    ensure!(resident.tail_cells == 0, "{} cells of the resident cache were in the tail", resident.tail_cells);
    for (pass, name) in [(rolling, "under the cap"), (resident, "all resident")] {
        ensure!(pass.answers.len() == trials.len(), "{} of {} questions were asked", pass.answers.len(), trials.len());
        let answers = trials.iter().zip(&pass.answers);
        let wrong: Vec<_> = answers.filter(|(trial, answer)| !trial.is_answered_by(&answer.text)).collect();
        if let [(trial, answer), ..] = wrong[..] {
            let (question, said, right) = (&trial.question, answer.text.trim(), &trial.answer);
            let (count, all) = (wrong.len(), trials.len());
            bail!("{count} of {all} answers are wrong {name}: '{question}' got '{said}', the answer is {right}");
        }
    }
    let texts = |pass: &Pass| pass.answers.iter().map(|answer| answer.text.clone()).collect::<Vec<_>>();
    ensure!(texts(rolling) == texts(resident), "the answers under the cap are others than with all resident");
    let lost = rolling.without_tail.as_deref().unwrap_or_default();
    ensure!(lost.contains(UNKNOWN), "without the tail the answer should be {UNKNOWN}, and is '{}'", lost.trim());
    ensure!(difference.rows > 0, "no logits were compared");
    ensure!(difference.differ == 0, "{} logits differ under the cap", difference.differ);
    Ok(())
}

#[cfg(test)]
mod tests {
    use tailrace_measure::eval::{Encoder, Haystack};
    use tailrace_types::TokenId;

    use super::super::pass::Answer;
    use super::*;

    fn trials() -> Vec<Trial> {
        let encode = |text: &str| text.bytes().map(|b| TokenId(b.into())).collect();
        let encoder = Encoder { encode: &encode, bos: None };
        Trial::series(encoder, &Haystack::MadeUp, &[0.1, 0.9], 2000, 1).expect("room").trials
    }

    /// What two passes say that are as they should be.
    fn passes(trials: &[Trial]) -> (Pass, Pass) {
        let answer = |trial: &Trial| Answer {
            text: format!("{} {}.", trial.lead, trial.answer),
            logits: vec![0.5, -1.5, 3.0],
            ..Answer::default()
        };
        let pass = |tail_cells| Pass {
            vocab: 3,
            document: vec![0.25; 30],
            answers: trials.iter().map(answer).collect(),
            cells: 1000,
            tail_cells,
            ..Pass::default()
        };
        let lost = Some(format!("{} {UNKNOWN}.", trials[0].lead));
        (Pass { without_tail: lost, ..pass(900) }, pass(0))
    }

    #[test]
    fn two_passes_that_say_the_same_are_shown() {
        let trials = trials();
        let (rolling, resident) = passes(&trials);
        let difference = Difference::new(&rolling, &resident);
        check(&trials, &rolling, &resident, &difference).expect("all is well");
        assert_eq!(difference, Difference { rows: 13, vocab: 3, differ: 0, largest: 0.0 });
        let table = table(&rolling, &resident);
        assert!(table.contains("capped") && table.contains(" 90.0%"), "{table}");
    }

    #[test]
    fn whatever_is_not_as_it_should_be_fails() {
        type Change = fn(&mut Pass, &mut Pass);
        let changes: [(Change, &str); 12] = [
            (|rolling, _| rolling.tail_cells = 899, "only 89.9 % of the cache"),
            (|_, resident| resident.tail_cells = 1, "1 cells of the resident cache"),
            (
                |rolling, _| rolling.answers[1].text = " is unknown.".to_owned(),
                "1 of 3 answers are wrong under the cap",
            ),
            (|_, resident| resident.answers[0].text.clear(), "1 of 3 answers are wrong all resident"),
            (|rolling, _| rolling.answers[2].text.push('!'), "the answers under the cap are others"),
            (|rolling, _| rolling.without_tail = Some("12345".to_owned()), "without the tail the answer should be"),
            (|rolling, _| rolling.without_tail = None, "without the tail the answer should be"),
            (|_, resident| resident.answers[1].logits[2] = 3.5, "1 logits differ"),
            (|rolling, _| rolling.document[7] = f32::NAN, "1 logits differ"),
            (|rolling, _| rolling.answers[0].logits[0] = -0.5, "1 logits differ"),
            (|rolling, _| rolling.document.truncate(27), "6 logits differ"),
            (|rolling, _| rolling.answers.truncate(2), "2 of 3 questions were asked"),
        ];
        for (change, says) in changes {
            let trials = trials();
            let (mut rolling, mut resident) = passes(&trials);
            change(&mut rolling, &mut resident);
            let difference = Difference::new(&rolling, &resident);
            let error = check(&trials, &rolling, &resident, &difference).expect_err(says).to_string();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn answers_are_right_lost_or_wrong() {
        let trials = trials();
        for (trial, last) in [(&trials[0], "lost"), (&trials[2], "right")] {
            let answer = format!("{} {}.", trial.lead, trial.answer);
            assert_eq!(mark(trial, &answer), "right");
            assert_eq!(mark(trial, " is unknown."), last);
            assert_eq!(mark(trial, " is 7."), "wrong");
        }
    }
}
