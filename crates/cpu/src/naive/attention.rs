//! Softmax attention of one query over one list of cells, in `f64`.

/// Whether a row at `position` sees the cell at `cell`: not the future, and with a sliding
/// window only the last `window` positions, its own included.
pub fn is_visible(position: u32, cell: u32, window: Option<u32>) -> bool {
    cell <= position && window.is_none_or(|w| position - cell < w)
}

/// Arithmetic of a head apart from its inputs.
#[derive(Clone, Copy, Debug)]
pub struct Softmax {
    /// Factor on `<q, k>`.
    pub scale: f32,
    /// Scores become `cap * tanh(score / cap)`.
    pub cap: Option<f32>,
    /// A score without a value that enters the denominator alone.
    pub sink: Option<f32>,
}

/// `out = sum p(c) v(c)` over the visible `cells`, pairs of a key and a value row, with
/// `p(c) = e^s(c) / (e^sink + sum e^s)`; zeros if there is no cell.
pub fn attend(q: &[f32], cells: &[(&[f32], &[f32])], softmax: Softmax, out: &mut [f32]) {
    let score = |k: &[f32]| {
        let dot: f64 = q.iter().zip(k).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
        let s = dot * f64::from(softmax.scale);
        softmax.cap.map_or(s, |cap| f64::from(cap) * (s / f64::from(cap)).tanh())
    };
    let scores: Vec<f64> = cells.iter().map(|(k, _)| score(k)).collect();
    let sink = softmax.sink.map_or(f64::NEG_INFINITY, f64::from);
    let max = scores.iter().copied().fold(sink, f64::max);
    if max == f64::NEG_INFINITY {
        out.fill(0.0);
        return;
    }
    let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
    let total = weights.iter().sum::<f64>() + (sink - max).exp();
    for (d, out) in out.iter_mut().enumerate() {
        let sum: f64 = weights.iter().zip(cells).map(|(w, (_, v))| w * f64::from(v[d])).sum();
        *out = (sum / total) as f32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Softmax = Softmax { scale: 1.0, cap: None, sink: None };

    #[test]
    fn a_single_cell_is_copied_and_none_is_zero() {
        let mut out = [9.0; 2];
        attend(&[3.0], &[(&[5.0], &[1.0, -2.0])], PLAIN, &mut out);
        assert_eq!(out, [1.0, -2.0]);
        attend(&[3.0], &[], PLAIN, &mut out);
        assert_eq!(out, [0.0, 0.0]);
    }

    #[test]
    fn weights_follow_the_scores() {
        let ln3 = 3f32.ln();
        let cells: [(&[f32], &[f32]); 2] = [(&[0.0], &[0.0]), (&[1.0], &[1.0])];
        let mut out = [0.0];
        attend(&[ln3], &cells, PLAIN, &mut out);
        assert!((out[0] - 0.75).abs() < 1e-6);
        // A sink of score 0 doubles the weight of the first cell without a value.
        attend(&[ln3], &cells, Softmax { sink: Some(0.0), ..PLAIN }, &mut out);
        assert!((out[0] - 0.6).abs() < 1e-6);
        // A cap far below the score makes both scores nearly 0 and the cap.
        let capped = Softmax { scale: 100.0, cap: Some(ln3), sink: None };
        attend(&[ln3], &cells, capped, &mut out);
        assert!((out[0] - 0.75).abs() < 1e-6);
    }

    #[test]
    fn a_window_counts_the_row_itself() {
        let seen: Vec<u32> = (0..10).filter(|&c| is_visible(7, c, Some(3))).collect();
        assert_eq!(seen, [5, 6, 7]);
        assert!(is_visible(7, 0, None) && !is_visible(7, 8, None));
    }
}
