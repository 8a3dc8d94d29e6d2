//! Expected failures: what is known to be broken where, and why. An unexpected pass is a failure too, so
//! that the list can not rot.

use serde::{Deserialize, Serialize};

/// One known failure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Expectation {
    /// The provider's name.
    pub provider: String,
    /// The device's name; `*` stands for any run of characters.
    #[serde(default = "anything")]
    pub device: String,
    /// The case; `*` likewise.
    pub case: String,
    /// Why it fails: a driver's or firmware's version, an issue's address.
    pub reason: String,
}

fn anything() -> String {
    "*".into()
}

impl Expectation {
    /// Whether it speaks of this case there.
    pub fn matches(&self, provider: &str, device: &str, case: &str) -> bool {
        self.provider == provider && glob(&self.device, device) && glob(&self.case, case)
    }
}

/// `*` in `pattern` stands for any run of characters.
fn glob(pattern: &str, text: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(text) = text.strip_prefix(head) else { return false };
    let starts = (0..=text.len()).filter(|&i| text.is_char_boundary(i));
    starts.into_iter().any(|i| glob(rest, &text[i..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_match_any_run() {
        for (pattern, text, fits) in [
            ("*", "", true),
            ("mlx5_*", "mlx5_0", true),
            ("mlx5_*", "efa_0", false),
            ("*_0", "mlx5_0", true),
            ("a*c*e", "abcde", true),
            ("a*c*e", "abde", false),
            ("put", "puts", false),
        ] {
            assert_eq!(glob(pattern, text), fits, "{pattern} {text}");
        }
    }

    #[test]
    fn the_provider_is_exact() {
        let e = Expectation {
            provider: "efa".into(),
            device: "*".into(),
            case: "get_*".into(),
            reason: "r".into(),
        };
        assert!(
            e.matches("efa", "x", "get_y")
                && !e.matches("efa2", "x", "get_y")
                && !e.matches("efa", "x", "put")
        );
    }
}
