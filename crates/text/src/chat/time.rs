//! `strftime_now`: today's date, which some templates put into the system prompt.

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];

/// Year, month (1 to 12) and day (1 to 31) of the day that is `days` after 1970-01-01.
///
/// Counts in eras of 400 years that start on 1 March, so that the leap day comes last. Source: Howard Hinnant,
/// "chrono-Compatible Low-Level Date Algorithms".
fn civil(days: u64) -> (u64, usize, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month as usize, day)
}

/// `now` in UTC by a `strftime` pattern. Conversions that are not known are printed as they stand.
pub(super) fn format(now: SystemTime, pattern: &str) -> String {
    let seconds = now.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    let (month_name, weekday) = (MONTHS[month - 1], WEEKDAYS[(days % 7) as usize]);
    let mut out = String::new();
    let mut chars = pattern.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        // Writing to a string cannot fail.
        let _ = match chars.next() {
            Some('Y') => write!(out, "{year}"),
            Some('y') => write!(out, "{:02}", year % 100),
            Some('m') => write!(out, "{month:02}"),
            Some('d') => write!(out, "{day:02}"),
            Some('e') => write!(out, "{day:2}"),
            Some('B') => write!(out, "{month_name}"),
            Some('b' | 'h') => write!(out, "{}", &month_name[..3]),
            Some('A') => write!(out, "{weekday}"),
            Some('a') => write!(out, "{}", &weekday[..3]),
            Some('H') => write!(out, "{hour:02}"),
            Some('I') => write!(out, "{:02}", (hour + 11) % 12 + 1),
            Some('M') => write!(out, "{minute:02}"),
            Some('S') => write!(out, "{second:02}"),
            Some('p') => write!(out, "{}", if hour < 12 { "AM" } else { "PM" }),
            Some('F') => write!(out, "{year}-{month:02}-{day:02}"),
            Some('T') => write!(out, "{hour:02}:{minute:02}:{second:02}"),
            Some('Z') => write!(out, "UTC"),
            Some('%') => write!(out, "%"),
            Some(other) => write!(out, "%{other}"),
            None => write!(out, "%"),
        };
    }
    out
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(seconds: u64, pattern: &str) -> String {
        format(UNIX_EPOCH + Duration::from_secs(seconds), pattern)
    }

    #[test]
    fn dates() {
        assert_eq!(at(0, "%A %d %B %Y %T"), "Thursday 01 January 1970 00:00:00");
        assert_eq!(at(951_782_400, "%F %a"), "2000-02-29 Tue");
        assert_eq!(at(951_868_800, "%F"), "2000-03-01");
        assert_eq!(at(1_709_210_096, "%d %b %Y, %I:%M %p"), "29 Feb 2024, 12:34 PM");
        assert_eq!(at(4_107_542_400, "%F"), "2100-03-01");
        assert_eq!(at(0, "%e%%%q%"), " 1%%q%");
    }
}
