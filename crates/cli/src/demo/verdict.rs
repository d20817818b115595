//! Whether the demonstration shows what it is for.

use std::fmt::Write as _;

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

/// The largest difference of logits, which is 0.
///
/// # Errors
///
/// An answer is wrong, the passes differ, or the tail was not needed.
pub(super) fn check(trials: &[Trial], rolling: &Pass, resident: &Pass) -> Result<f32> {
    let share = rolling.tail_share();
    ensure!(
        share >= TAIL_SHARE_MIN,
        "only {:.1} % of the cache was in the tail, {:.0} % were to be; take more --tokens",
        100.0 * share,
        100.0 * TAIL_SHARE_MIN
    );
    ensure!(resident.tail_cells == 0, "{} cells of the resident cache were in the tail", resident.tail_cells);
    for (pass, name) in [(rolling, "under the cap"), (resident, "all resident")] {
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

    let (a, b): (Vec<_>, Vec<_>) = (rolling.logits().collect(), resident.logits().collect());
    ensure!(a.len() == b.len() && !a.is_empty(), "{} logits under the cap, {} with all resident", a.len(), b.len());
    let differ = a.iter().zip(&b).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
    let largest = a.iter().zip(&b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    ensure!(differ == 0, "{differ} of {} logits differ under the cap, by at most {largest}", a.len());
    Ok(largest)
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
        assert_eq!(check(&trials, &rolling, &resident).expect("all is well"), 0.0);
        assert_eq!(rolling.rows(), 13);
        let table = table(&rolling, &resident);
        assert!(table.contains("capped") && table.contains(" 90.0%"), "{table}");
    }

    #[test]
    fn whatever_is_not_as_it_should_be_fails() {
        type Change = fn(&mut Pass, &mut Pass);
        let changes: [(Change, &str); 9] = [
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
            (|_, resident| resident.answers[1].logits[2] = 3.5, "1 of 39 logits differ under the cap, by at most 0.5"),
            (|rolling, _| rolling.document[7] = f32::NAN, "1 of 39 logits differ"),
        ];
        for (change, says) in changes {
            let trials = trials();
            let (mut rolling, mut resident) = passes(&trials);
            change(&mut rolling, &mut resident);
            let error = check(&trials, &rolling, &resident).expect_err(says).to_string();
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
