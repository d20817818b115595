//! How fast a step with a tail can be.

/// Times of a step in milliseconds by the two laws.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Laws {
    /// `C + X/L`: transfer and compute take turns.
    pub serial_ms: f64,
    /// `max(C, X/L)`: they overlap.
    pub overlapped_ms: f64,
}

/// Where transfer and compute take about as long, both run all the time, and the link has the rate that it has beside a busy device.
const BALANCE: f64 = 0.25;

impl Laws {
    /// Laws for a resident step of `resident_ms` and `tail_bytes` in the tail, over a link that carries `link` bytes per second
    /// alone and `loaded` while the device reads its memory. `None` where there is a tail but no link.
    pub fn of(resident_ms: f64, tail_bytes: u64, link: f64, loaded: f64) -> Option<Laws> {
        if tail_bytes == 0 {
            return Some(Laws { serial_ms: resident_ms, overlapped_ms: resident_ms });
        }
        let transfer_ms = |rate: f64| (rate > 0.0).then(|| tail_bytes as f64 / rate * 1e3);
        let alone_ms = transfer_ms(link)?;
        let balanced = (alone_ms - resident_ms).abs() <= BALANCE * resident_ms;
        let overlapped_ms = if balanced { transfer_ms(loaded)? } else { alone_ms };
        Some(Laws { serial_ms: resident_ms + alone_ms, overlapped_ms: resident_ms.max(overlapped_ms) })
    }
}

#[cfg(test)]
mod tests {
    use super::Laws;

    #[test]
    fn a_short_tail_hides_and_a_long_one_rules() {
        let laws = |tail_bytes| Laws::of(10.0, tail_bytes, 50e9, 40e9).expect("there is a link");
        assert_eq!(laws(0), Laws { serial_ms: 10.0, overlapped_ms: 10.0 });
        assert_eq!(laws(100_000_000), Laws { serial_ms: 12.0, overlapped_ms: 10.0 });
        assert_eq!(laws(5_000_000_000), Laws { serial_ms: 110.0, overlapped_ms: 100.0 });
    }

    #[test]
    fn near_the_balance_the_link_is_loaded() {
        // 10 ms alone, 12.5 beside a busy device.
        let laws = Laws::of(10.0, 500_000_000, 50e9, 40e9).expect("there is a link");
        assert_eq!(laws, Laws { serial_ms: 20.0, overlapped_ms: 12.5 });
    }

    #[test]
    fn without_a_link_there_is_no_law() {
        assert_eq!(Laws::of(10.0, 1, 0.0, 0.0), None);
        assert!(Laws::of(10.0, 0, 0.0, 0.0).is_some());
    }
}
