//! Numbers as text.

/// Formats a number without decimals, its thousands separated by commas.
#[must_use]
pub fn grouped(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut out = String::new();
    if value < 0.0 && digits != "0" {
        out.push('-');
    }
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Formats a number with about three significant digits: `0.42`, `3.14`, `30.1`, `458`, `12,805`.
#[must_use]
pub fn short(value: f64) -> String {
    match value.abs() {
        size if size < 9.995 => format!("{value:.2}"),
        size if size < 99.95 => format!("{value:.1}"),
        _ => grouped(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_but_exact_enough() {
        let texts = [0.0, 0.4159, 3.2459, 9.996, 30.14, 99.96, 458.4, 12805.0].map(short);
        assert_eq!(texts, ["0.00", "0.42", "3.25", "10.0", "30.1", "100", "458", "12,805"]);
        assert_eq!(
            [999.0, 1000.0, 1_236_608.2, -1234.0, -0.2].map(grouped),
            ["999", "1,000", "1,236,608", "-1,234", "0"]
        );
    }
}
